"""State regramming: a content-dependent rotation of the carried SSD state."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.layers.per_head_mlp import PerHeadMLP
from mmssm.models.layers.precision import at_least_float32
from mmssm.ops import cayley_rotate
from mmssm.ops.precision import autocast_off


class RotationPlanes(NamedTuple):
    """The low-rank skew-symmetric generator S = U diag(theta) V^T - (.)^T.

    Attributes:
        U (Tensor): Unit columns, ``(batch, heads, d_state, rank)``.
        V (Tensor): Unit columns, ``(batch, heads, d_state, rank)``.
        theta (Tensor): Magnitudes >= 0, ``(batch, heads, rank)``.
    """

    U: Tensor
    V: Tensor
    theta: Tensor


class StateRegramming(nn.Module):
    """Rotate a state by an amount that the finished chunk decides.

    ``phi`` is the layer-normed mean of the chunk's outputs; one MLP per head
    makes of it the planes U, V and a second one the magnitudes theta; the
    state is multiplied from the right by the Cayley map of the generator,
    which is exactly orthogonal. Always computed in at least float32, outside
    autocast.

    Args:
        num_heads (int): Number of heads.
        headdim (int): Width of a head.
        d_state (int): State size that is rotated.
        rank (int): Number of column pairs (U, V).
        hidden_dim (int): Hidden width of the MLPs. Default: 128.

    Source: SurgicalMamba (arXiv 2605.14889), equations 11 to 15.
    """

    def __init__(
        self,
        num_heads: int,
        headdim: int,
        d_state: int,
        rank: int,
        hidden_dim: int = 128,
    ) -> None:
        super().__init__()
        self.headdim = headdim
        self.d_state = d_state
        self.rank = rank
        self.uv_mlp = PerHeadMLP(
            num_heads, headdim, hidden_dim, 2 * d_state * rank
        )
        self.theta_mlp = PerHeadMLP(num_heads, headdim, hidden_dim, rank)
        self._init_biases(num_heads)

    @torch.no_grad()
    def _init_biases(self, num_heads: int) -> None:
        size = self.d_state * self.rank
        halves = [_orthogonal_rows(num_heads, size) for _ in range(2)]
        # The scale makes the bias outweigh the MLP's output at the start.
        self.uv_mlp.b2.copy_(torch.cat(halves, 1) * 0.5 * math.sqrt(size))
        self.theta_mlp.b2.fill_(0.3)

    def planes(self, y_mean: Tensor) -> RotationPlanes:
        """Compute the planes from the mean output of a chunk.

        Args:
            y_mean (Tensor): ``(batch, heads, headdim)``.

        Returns:
            RotationPlanes: U, V and theta, at least float32.
        """
        with autocast_off(y_mean):
            phi = F.layer_norm(
                at_least_float32(y_mean), (self.headdim,), eps=1e-5
            )
            # (batch, heads, 2, d_state, rank)
            uv = self.uv_mlp(phi).unflatten(-1, (2, self.d_state, self.rank))
            U, V = F.normalize(uv, dim=-2, eps=1e-12).unbind(2)
            return RotationPlanes(U, V, F.softplus(self.theta_mlp(phi)))

    def forward(self, ssm_state: Tensor, y_mean: Tensor) -> Tensor:
        """Rotate a state at the end of a chunk.

        Args:
            ssm_state (Tensor): ``(batch, heads, headdim, d_state)``.
            y_mean (Tensor): Mean output over the chunk's real frames,
                ``(batch, heads, headdim)``.

        Returns:
            Tensor: The rotated state, of the same norm.
        """
        return cayley_rotate(ssm_state, *self.planes(y_mean))


def _orthogonal_rows(rows: int, size: int) -> Tensor:
    """Unit rows ``(rows, size)``, orthogonal in blocks of up to ``size``."""
    blocks = []
    for start in range(0, rows, size):
        count = min(size, rows - start)
        blocks.append(torch.linalg.qr(torch.randn(size, count))[0].T)
    return torch.cat(blocks)
