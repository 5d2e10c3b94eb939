"""Gated root-mean-square normalisation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.layers.precision import at_least_float32


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
        gated = at_least_float32(y) * F.silu(at_least_float32(z))
        return F.rms_norm(
            gated, (self.weight.numel(),), self.weight.to(gated), self.eps
        ).to(y.dtype)
