"""Gated root-mean-square normalisation."""

import torch
from torch import Tensor, nn

from mmssm.ops import rms_norm_gated


class GatedRMSNorm(nn.Module):
    """RMSNorm of a gated input: ``RMSNorm(y * silu(z)) * weight``.

    The gate comes before the norm, as in Mamba2. Computed in at least
    float32; returned in the dtype of ``y``.

    Args:
        dim (int): Width that is normalised.
        eps (float): Added to the mean square. Default: 1e-5.
    """

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """Normalise ``y * silu(z)``, both ``(..., dim)``."""
        return rms_norm_gated(y, self.weight, z=z, eps=self.eps)
