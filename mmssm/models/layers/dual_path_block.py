"""The dual-path SSD block of SurgicalMamba."""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmssm.models.layers.ffn import FeedForward
from mmssm.models.layers.precision import at_least_float32
from mmssm.models.layers.rms_norm import GatedRMSNorm
from mmssm.models.layers.ssd_path import SSDPath, SSDPathState
from mmssm.structures.temporal_state import TemporalState


@dataclasses.dataclass
class DualPathState(TemporalState):
    """State of one dual-path block; a path that is off has None.

    Attributes:
        slow (SSDPathState or None): Carried from clip to clip.
        fast (SSDPathState or None): Zero at the start of every clip.
    """

    slow: SSDPathState | None
    fast: SSDPathState | None


class IntensityNet(nn.Module):
    """Transition intensity of each frame, as a logit.

    Reads the slow path's convolved features. They are detached: the
    intensity learns to see transitions without shaping the features, as in
    the published code (the paper does not say it).

    Args:
        d_inner (int): Width of the features.
        detach (bool): Whether to cut the gradient at the input.
    """

    def __init__(self, d_inner: int, detach: bool = True) -> None:
        super().__init__()
        hidden = max(d_inner // 16, 8)
        self.fc1 = nn.Linear(d_inner, hidden)
        self.fc2 = nn.Linear(hidden, 1)
        self.detach = detach

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, length, d_inner)`` to ``(batch, length)``."""
        if self.detach:
            x = x.detach()
        logits = self.fc2(F.silu(self.fc1(x))).squeeze(-1)
        return at_least_float32(logits)


class DualPathMixer(nn.Module):
    """Slow and fast SSD paths with a common gate.

    The slow path carries its state across clips and steps at the pace the
    intensity sets: dt * (1 + lambda). The fast path starts anew at every
    clip; what it writes and reads is chosen from its own features together
    with the slow path's output (one-way conditioning).

    Args: see :class:`DualPathBlock`.
    """

    def __init__(
        self,
        d_model: int,
        d_state_slow: int,
        d_state_fast: int,
        d_conv: int,
        expand: int,
        chunk_size_slow: int,
        chunk_size_fast: int,
        rotation_rank: int | None,
        use_intensity: bool,
        use_slow_path: bool,
        use_fast_path: bool,
        detach_intensity: bool,
        headdim: int,
    ) -> None:
        super().__init__()
        d_inner = expand * d_model
        common = dict(
            d_inner=d_inner,
            d_conv=d_conv,
            dt_rank=math.ceil(d_model / 16),
            rotation_rank=rotation_rank,
            headdim=headdim,
        )
        self.slow = self.fast = self.intensity_net = None
        if use_slow_path:
            self.in_proj_slow = nn.Linear(d_model, d_inner, bias=False)
            self.slow = SSDPath(
                d_state=d_state_slow,
                chunk_size=chunk_size_slow,
                dt_bias_shift=-2.0,
                **common,
            )
            self.scale_slow = nn.Parameter(torch.ones(d_inner))
        if use_intensity:
            self.intensity_net = IntensityNet(d_inner, detach_intensity)
        if use_fast_path:
            self.fast = SSDPath(
                d_state=d_state_fast,
                chunk_size=chunk_size_fast,
                cond_channels=(2 if use_slow_path else 1) * d_inner,
                **common,
            )
            self.scale_fast = nn.Parameter(torch.ones(d_inner))
        # Rows of the fast path's input, if there is one, then of the gate z.
        self.in_proj = nn.Linear(
            d_model, (2 if use_fast_path else 1) * d_inner, bias=False
        )
        self.norm = GatedRMSNorm(d_inner)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def forward(
        self, x: Tensor, state: DualPathState
    ) -> tuple[Tensor, DualPathState, Tensor | None]:
        """Mix ``length`` frames of an open clip.

        Args:
            x (Tensor): ``(batch, length, d_model)``.
            state (DualPathState): State before the first of them.

        Returns:
            tuple: Output shaped like ``x``, state after the last frame, and
            the intensity logits ``(batch, length)`` or None.
        """
        *x_fast, z = self.in_proj(x).split(self.norm.weight.numel(), dim=-1)
        y_slow, slow, intensity = self._run_slow(x, state.slow)
        y_fast, fast = self._run_fast(x_fast, y_slow, state.fast)
        scaled = [
            scale * y
            for scale, y in (
                (getattr(self, 'scale_slow', None), y_slow),
                (getattr(self, 'scale_fast', None), y_fast),
            )
            if y is not None
        ]
        out = self.out_proj(self.norm(sum(scaled[1:], scaled[0]), z))
        return out, DualPathState(slow, fast), intensity

    def _run_slow(
        self, x: Tensor, state: SSDPathState | None
    ) -> tuple[Tensor | None, SSDPathState | None, Tensor | None]:
        if self.slow is None:
            return None, None, None
        u, state = self.slow.convolve(self.in_proj_slow(x), state)
        dt, B, C = self.slow.token_parameters(u)
        intensity = None
        if self.intensity_net is not None:
            intensity = self.intensity_net(u)
            dt = dt * (1 + intensity.sigmoid())[..., None]
        y, state = self.slow.scan(u, dt, B, C, state)
        return y, state, intensity

    def _run_fast(
        self,
        x_fast: list[Tensor],
        y_slow: Tensor | None,
        state: SSDPathState | None,
    ) -> tuple[Tensor | None, SSDPathState | None]:
        if self.fast is None:
            return None, None
        u, state = self.fast.convolve(x_fast[0], state)
        cond = u if y_slow is None else torch.cat([u, y_slow], dim=-1)
        return self.fast.scan(u, *self.fast.token_parameters(cond), state)

    def close_clip(self, state: DualPathState) -> DualPathState:
        """Rotate the slow state by its open chunk and forget the fast one."""
        slow, fast = state.slow, state.fast
        if self.slow is not None:
            slow = self.slow.close_chunk(slow)
        if self.fast is not None:
            fast = fast.forget()
        return DualPathState(slow, fast)


class DualPathBlock(nn.Module):
    """Pre-norm dual-path mixer and feed-forward network, with residuals.

    Args:
        d_model (int): Width of input and output.
        d_state_slow (int): State size of the slow path.
        d_state_fast (int): State size of the fast path.
        d_conv (int): Kernel size of both convolutions.
        expand (int): Inner width over ``d_model``.
        chunk_size_slow (int): Frames per chunk of the slow path.
        chunk_size_fast (int): Frames per chunk of the fast path.
        rotation_rank (int or None): Rank of both rotations; None: none.
        use_intensity (bool): Whether lambda modulates the slow step.
        use_slow_path (bool): Whether there is a slow path.
        use_fast_path (bool): Whether there is a fast path.
        detach_intensity (bool): Whether the intensity net reads detached
            features.
        dropout (float): On both residual branches and in the FFN.
        headdim (int): Width of a head.

    Raises:
        ValueError: If both paths are off, or if ``use_intensity`` without a
            slow path.

    Source: SurgicalMamba (arXiv 2605.14889), Algorithm 1.
    """

    def __init__(
        self,
        d_model: int,
        d_state_slow: int = 64,
        d_state_fast: int = 64,
        d_conv: int = 4,
        expand: int = 2,
        chunk_size_slow: int = 64,
        chunk_size_fast: int = 64,
        rotation_rank: int | None = 16,
        use_intensity: bool = True,
        use_slow_path: bool = True,
        use_fast_path: bool = True,
        detach_intensity: bool = True,
        dropout: float = 0.0,
        headdim: int = 64,
    ) -> None:
        super().__init__()
        if not (use_slow_path or use_fast_path):
            raise ValueError(
                '`use_slow_path` and `use_fast_path` are both False; a block '
                'needs at least one path'
            )
        if use_intensity and not use_slow_path:
            raise ValueError(
                '`use_intensity` needs the slow path, whose step it '
                'modulates; set use_intensity=False with use_slow_path=False'
            )
        self.norm = nn.LayerNorm(d_model)
        self.mixer = DualPathMixer(
            d_model,
            d_state_slow,
            d_state_fast,
            d_conv,
            expand,
            chunk_size_slow,
            chunk_size_fast,
            rotation_rank,
            use_intensity,
            use_slow_path,
            use_fast_path,
            detach_intensity,
            headdim,
        )
        self.ffn_norm = nn.LayerNorm(d_model)
        self.ffn = FeedForward(d_model, dropout=dropout)
        self.drop = nn.Dropout(dropout)

    def init_state(
        self, batch_size: int, device: torch.device, dtype: torch.dtype
    ) -> DualPathState:
        """Make the zero state of the paths there are."""
        slow, fast = (
            path and path.init_state(batch_size, device, dtype)
            for path in (self.mixer.slow, self.mixer.fast)
        )
        return DualPathState(slow, fast)

    def forward(
        self, x: Tensor, state: DualPathState
    ) -> tuple[Tensor, DualPathState, Tensor | None]:
        """Run ``length`` frames; as :meth:`DualPathMixer.forward`."""
        mixed, state, intensity = self.mixer(self.norm(x), state)
        x = x + self.drop(mixed)
        x = x + self.drop(self.ffn(self.ffn_norm(x)))
        return x, state, intensity

    def close_clip(self, state: DualPathState) -> DualPathState:
        """Do what the definition does at the end of a clip."""
        return self.mixer.close_clip(state)
