"""One direction of a scanning mixer, with the selective scan of Mamba."""

import math

import torch
from torch import Tensor, nn

from mmssm.models.layers.precision import at_least_float32
from mmssm.ops import causal_conv1d, selective_scan


class SelectiveScanDirection(nn.Module):
    """Depthwise convolution, token parameters and selective scan.

    Args:
        d_inner (int): Number of channels.
        d_state (int): State size per channel.
        d_conv (int): Kernel size of the convolution.
        dt_rank (int): Rank of the step-size projection.
        reverse (bool): Whether tokens are scanned from the last to the first.
        backend (str, optional): Of the operators; None picks by device.

    Source: Vision Mamba (arXiv 2401.09417), Algorithm 1.
    """

    def __init__(
        self,
        d_inner: int,
        d_state: int = 16,
        d_conv: int = 4,
        dt_rank: int = 12,
        reverse: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.d_state, self.dt_rank = d_state, dt_rank
        self.reverse, self.backend = reverse, backend
        # Holds weight and bias; the operator pads.
        self.conv1d = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner)
        # Rows of dt, of B, then of C.
        self.x_proj = nn.Linear(d_inner, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        A = torch.arange(1, d_state + 1, dtype=torch.float32)
        self.A_log = nn.Parameter(A.log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self._init_dt()

    def ssm_flops(self, length: int) -> int:
        """FLOPs of a scan of ``length`` tokens as the papers count them.

        Source: TCP-SSM (arXiv 2605.11563) counts ``7 state + 2 dt_rank + 1``
        per token and channel; inferred from its printed figures.
        """
        d_inner = self.D.numel()
        return length * d_inner * (7 * self.d_state + 2 * self.dt_rank + 1)

    @torch.no_grad()
    def _init_dt(self) -> None:
        bound = self.dt_rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        log_dt = torch.empty_like(self.dt_proj.bias).uniform_(
            math.log(1e-3), math.log(1e-1)
        )
        dt = log_dt.exp().clamp(min=1e-4)
        # Inverse of softplus, so that softplus(bias) = dt.
        self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Scan tokens and gate the result.

        Args:
            x (Tensor): Inputs ``(batch, length, d_inner)``.
            z (Tensor): Gate, like ``x``.

        Returns:
            Tensor: Like ``x``.
        """
        # The operators take (batch, dim, length); these are views.
        u = causal_conv1d(
            x.mT,
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            activation='silu',
            reverse=self.reverse,
            backend=self.backend,
        )
        sizes = (self.dt_rank, self.d_state, self.d_state)
        dt, B, C = self.x_proj(u.mT).split(sizes, dim=-1)
        y = selective_scan(
            u,
            nn.functional.linear(dt, self.dt_proj.weight).mT,
            -at_least_float32(self.A_log).exp(),
            B.mT,
            C.mT,
            D=self.D,
            z=z.mT,
            delta_bias=self.dt_proj.bias,
            delta_softplus=True,
            reverse=self.reverse,
            backend=self.backend,
        )
        return y.mT
