"""Two-layer perceptrons with weights of their own for every head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PerHeadMLP(nn.Module):
    """Linear, SiLU, Linear, separately for each head.

    Weights start Xavier-normal per head, with gain 1 for the first and 2 for
    the second layer; the first bias is zero, the second is the caller's to
    set.

    Args:
        num_heads (int): Number of heads.
        in_dim (int): Input width of a head.
        hidden_dim (int): Hidden width of a head.
        out_dim (int): Output width of a head.
    """

    def __init__(
        self, num_heads: int, in_dim: int, hidden_dim: int, out_dim: int
    ) -> None:
        super().__init__()
        self.W1 = nn.Parameter(torch.empty(num_heads, hidden_dim, in_dim))
        self.b1 = nn.Parameter(torch.zeros(num_heads, hidden_dim))
        self.W2 = nn.Parameter(torch.empty(num_heads, out_dim, hidden_dim))
        self.b2 = nn.Parameter(torch.zeros(num_heads, out_dim))
        for head in range(num_heads):
            nn.init.xavier_normal_(self.W1[head], gain=1.0)
            nn.init.xavier_normal_(self.W2[head], gain=2.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, heads, in_dim)`` to ``(batch, heads, out_dim)``.

        Computed in the dtype of ``x``, whatever that of the weights is.
        """
        W1, b1, W2, b2 = (
            p.to(x.dtype) for p in (self.W1, self.b1, self.W2, self.b2)
        )
        x = x.transpose(0, 1)  # heads as the batch of the matrix products
        x = torch.baddbmm(b1[:, None], x, W1.mT)
        x = torch.baddbmm(b2[:, None], F.silu(x), W2.mT)
        return x.transpose(0, 1)
