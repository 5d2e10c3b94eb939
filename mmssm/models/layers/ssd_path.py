"""One SSD path: convolution, token parameters, chunked scan, rotation."""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.layers.precision import at_least_float32
from mmssm.models.layers.state_regramming import StateRegramming
from mmssm.ops import (
    causal_conv1d,
    causal_conv1d_step,
    ssd_chunk_scan,
    ssd_step,
)
from mmssm.structures.temporal_state import TemporalState

HEADDIM = 64


@dataclasses.dataclass
class SSDPathState(TemporalState):
    """State of one SSD path, anywhere in a clip.

    Attributes:
        conv_state (Tensor): The last inputs of the convolution,
            ``(batch, d_inner, d_conv - 1)``.
        ssm_state (Tensor): ``(batch, heads, headdim, d_state)``, at least
            float32.
        y_sum (Tensor): Sum of the outputs over the open chunk,
            ``(batch, heads, headdim)``, at least float32.
        num_frames (int): Frames in the open chunk. A chunk that is full is
            rotated when the next frame comes or the clip is closed.
    """

    conv_state: Tensor
    ssm_state: Tensor
    y_sum: Tensor
    num_frames: int = 0


class SSDPath(nn.Module):
    """Causal depthwise convolution and an SSD scan with state regramming.

    The path holds parameters and the recurrence; the projections around it
    belong to the block. All methods work on ``length`` consecutive frames
    and continue from any state, so a clip and a single frame run through the
    same code.

    Args:
        d_inner (int): Width of the path, a multiple of ``headdim``.
        d_state (int): State size per channel.
        d_conv (int): Kernel size of the convolution.
        dt_rank (int): Rank of the step-size projection.
        chunk_size (int): Frames per chunk.
        cond_channels (int, optional): Width of the tensor that dt, B and C
            are read from. Default: ``d_inner``.
        rotation_rank (int, optional): Rank of the rotation; None: no
            rotation.
        dt_bias_shift (float): Added to the initial step-size bias; negative
            values start with longer memory. Default: 0.
        headdim (int): Width of a head. Default: 64.

    Raises:
        ValueError: If a size is below 1, or if ``d_inner`` is no multiple of
            ``headdim``.

    Source: SSD from Mamba2 (arXiv 2405.21060); path of SurgicalMamba (arXiv
    2605.14889, Algorithm 1). B and C have one group per head.
    """

    def __init__(
        self,
        d_inner: int,
        d_state: int,
        d_conv: int,
        dt_rank: int,
        chunk_size: int,
        cond_channels: int | None = None,
        rotation_rank: int | None = None,
        dt_bias_shift: float = 0.0,
        headdim: int = HEADDIM,
    ) -> None:
        super().__init__()
        if d_inner % headdim:
            raise ValueError(
                f'`d_inner` = {d_inner} must be a multiple of '
                f'`headdim` = {headdim}'
            )
        for name, value in (
            ('d_state', d_state),
            ('d_conv', d_conv),
            ('chunk_size', chunk_size),
        ):
            if value < 1:
                raise ValueError(f'`{name}` = {value}; expected >= 1')
        if rotation_rank is not None and rotation_rank < 1:
            raise ValueError(
                f'`rotation_rank` = {rotation_rank}; expected >= 1, or None '
                'for no rotation'
            )
        self.d_inner = d_inner
        self.d_state = d_state
        self.d_conv = d_conv
        self.dt_rank = dt_rank
        self.chunk_size = chunk_size
        self.headdim = headdim
        self.num_heads = d_inner // headdim
        # Holds weight and bias; the padding is the carried conv_state.
        self.conv1d = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner)
        self.x_proj = nn.Linear(
            d_inner if cond_channels is None else cond_channels,
            dt_rank + 2 * self.num_heads * d_state,
            bias=False,
        )
        self.dt_proj = nn.Linear(dt_rank, self.num_heads)
        A = torch.empty(self.num_heads).uniform_(1, max(d_state, 1))
        self.A_log = nn.Parameter(A.log())
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.regramming = (
            StateRegramming(self.num_heads, headdim, d_state, rotation_rank)
            if rotation_rank is not None
            else None
        )
        self._init_dt(dt_bias_shift)

    @torch.no_grad()
    def _init_dt(self, dt_bias_shift: float) -> None:
        bound = self.dt_rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        log_dt = torch.empty(self.num_heads).uniform_(
            math.log(1e-3), math.log(1e-1)
        )
        dt = log_dt.exp().clamp(min=1e-4)
        # Inverse of softplus, so that softplus(bias) = dt.
        inverse = dt + torch.log(-torch.expm1(-dt))
        self.dt_proj.bias.copy_(inverse + dt_bias_shift)

    def init_state(
        self, batch_size: int, device: torch.device, dtype: torch.dtype
    ) -> SSDPathState:
        """Make the zero state; ``dtype`` is that of the path's input."""
        acc = torch.float64 if dtype == torch.float64 else torch.float32
        heads = (batch_size, self.num_heads, self.headdim)
        return SSDPathState(
            conv_state=torch.zeros(
                batch_size,
                self.d_inner,
                self.d_conv - 1,
                device=device,
                dtype=dtype,
            ),
            ssm_state=torch.zeros(
                *heads, self.d_state, device=device, dtype=acc
            ),
            y_sum=torch.zeros(heads, device=device, dtype=acc),
        )

    def convolve(
        self, x: Tensor, state: SSDPathState
    ) -> tuple[Tensor, SSDPathState]:
        """Convolve and apply SiLU.

        Args:
            x (Tensor): Inputs ``(batch, length, d_inner)``.
            state (SSDPathState): State before the first of them.

        Returns:
            tuple: The result, shaped like ``x``, and the state with the new
            ``conv_state``.
        """
        weight, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
        conv_state = state.conv_state.to(x.dtype)
        if x.shape[1] == 1:
            y, conv_state = causal_conv1d_step(
                x[:, 0], conv_state, weight, bias, activation='silu'
            )
            y = y[:, None]
        else:
            y, conv_state = causal_conv1d(
                x.transpose(1, 2),
                weight,
                bias,
                initial_states=conv_state,
                return_final_states=True,
                activation='silu',
            )
            y = y.transpose(1, 2)
        return y, dataclasses.replace(state, conv_state=conv_state)

    def token_parameters(self, cond: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read the step size and the SSM matrices from each token.

        Args:
            cond (Tensor): ``(batch, length, cond_channels)``.

        Returns:
            tuple: dt ``(batch, length, heads)``, after softplus and at least
            float32; B and C ``(batch, length, heads, d_state)``.
        """
        sizes = [self.dt_rank] + 2 * [self.num_heads * self.d_state]
        dt, B, C = self.x_proj(cond).split(sizes, dim=-1)
        dt = at_least_float32(F.linear(dt, self.dt_proj.weight))
        dt = F.softplus(dt + self.dt_proj.bias)
        groups = (self.num_heads, self.d_state)
        return dt, B.unflatten(-1, groups), C.unflatten(-1, groups)

    def scan(
        self,
        x: Tensor,
        dt: Tensor,
        B: Tensor,
        C: Tensor,
        state: SSDPathState,
    ) -> tuple[Tensor, SSDPathState]:
        """Run the recurrence, rotating the state after each full chunk.

        Args:
            x (Tensor): ``(batch, length, d_inner)``.
            dt (Tensor): Step sizes ``(batch, length, heads)``.
            B (Tensor): ``(batch, length, heads, d_state)``.
            C (Tensor): ``(batch, length, heads, d_state)``.
            state (SSDPathState): State before the first frame.

        Returns:
            tuple: y with the skip D x, ``(batch, length, d_inner)``, and the
            state after the last frame, its chunk still open.
        """
        x = x.unflatten(-1, (self.num_heads, self.headdim))
        parts = [(x, dt, B, C)]
        lengths = self._lengths_to_chunk_ends(x.shape[1], state)
        if len(lengths) != 1:
            parts = zip(*(t.split(lengths, 1) for t in parts[0]), strict=True)
        outputs = []
        for part in parts:
            if state.num_frames == self.chunk_size:
                state = self.close_chunk(state)
            y, state = self._scan_open_chunk(*part, state)
            outputs.append(y)
        if not outputs:
            return x.flatten(-2), state
        y = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]
        return y.flatten(-2), state

    def _lengths_to_chunk_ends(
        self, length: int, state: SSDPathState
    ) -> list[int]:
        """Cut ``length`` frames where a chunk is full."""
        if self.regramming is None:
            return [length] if length else []  # nothing happens at an end
        lengths = []
        room = self.chunk_size - state.num_frames % self.chunk_size
        while length:
            lengths.append(min(length, room))
            length -= lengths[-1]
            room = self.chunk_size
        return lengths

    def _scan_open_chunk(
        self,
        x: Tensor,
        dt: Tensor,
        B: Tensor,
        C: Tensor,
        state: SSDPathState,
    ) -> tuple[Tensor, SSDPathState]:
        A = -at_least_float32(self.A_log).exp()
        if x.shape[1] == 1:
            y, ssm_state = ssd_step(
                state.ssm_state,
                x[:, 0],
                dt[:, 0],
                A,
                B[:, 0],
                C[:, 0],
                D=self.D,
            )
            y = y[:, None]
        else:
            y, ssm_state = ssd_chunk_scan(
                x,
                dt,
                A,
                B,
                C,
                chunk_size=self.chunk_size,
                D=self.D,
                initial_states=state.ssm_state,
                return_final_states=True,
            )
        if self.regramming is None:
            return y, dataclasses.replace(state, ssm_state=ssm_state)
        return y, dataclasses.replace(
            state,
            ssm_state=ssm_state,
            y_sum=state.y_sum + at_least_float32(y).sum(1),
            num_frames=state.num_frames + x.shape[1],
        )

    def close_chunk(self, state: SSDPathState) -> SSDPathState:
        """Rotate the state by what the open chunk saw, full or partial.

        Args:
            state (SSDPathState): State after the chunk's last frame.

        Returns:
            SSDPathState: Rotated state with no open chunk; unchanged when no
            frame was seen or the path has no rotation.
        """
        if self.regramming is None or not state.num_frames:
            return state
        return dataclasses.replace(
            state,
            ssm_state=self.regramming(
                state.ssm_state, state.y_sum / state.num_frames
            ),
            y_sum=torch.zeros_like(state.y_sum),
            num_frames=0,
        )
