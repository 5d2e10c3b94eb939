"""Position-wise feed-forward network."""

import torch.nn.functional as F
from torch import Tensor, nn


class FeedForward(nn.Module):
    """Linear, exact (erf) GELU, Linear; ``(..., d_model)`` to itself.

    Args:
        d_model (int): Width of input and output.
        expand (int): Hidden width over ``d_model``. Default: 4.
        dropout (float): Dropout after each linear layer. Default: 0.
    """

    def __init__(
        self, d_model: int, expand: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(d_model, expand * d_model)
        self.fc2 = nn.Linear(expand * d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to ``(..., d_model)``."""
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))
