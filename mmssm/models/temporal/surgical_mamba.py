"""SurgicalMamba's temporal model."""

import dataclasses

import torch
from torch import Tensor, nn

from mmssm.models.layers.dual_path_block import DualPathBlock, DualPathState
from mmssm.models.temporal.base import BaseTemporalModel, TemporalOutput
from mmssm.registry import MODELS
from mmssm.structures.temporal_state import ClipClockState


@dataclasses.dataclass
class SurgicalMambaState(ClipClockState):
    """Carried state of :class:`SurgicalMamba`: one entry per block."""

    blocks: tuple[DualPathState, ...] = ()


@MODELS.register_module()
class SurgicalMamba(BaseTemporalModel):
    """Stack of dual-path SSD blocks over frame features.

    Clip mode is the definition: the chunk grid restarts at each clip, the
    partial last chunk is rotated by the mean over its real length, the fast
    path starts each clip from zero. ``step`` gives the same numbers for
    every clip length and every mix of chunk sizes.

    The switches are the ablations of the papers: ``rotation_rank=None``
    (w/o Z), ``use_intensity=False`` (w/o lambda), ``use_fast_path=False``,
    ``use_slow_path=False`` (then also ``use_intensity=False``). The plain
    single-path models are :class:`PlainMamba2`.

    Args:
        in_channels (int): Width of the frame features. Default: 768.
        d_model (int): Width of the blocks. Default: 768.
        num_layers (int): Number of blocks. Default: 4.
        d_state (int): State size of the fast path, and of the slow path
            unless ``d_state_slow`` is given. Default: 64.
        d_state_slow (int, optional): State size of the slow path.
        d_conv (int): Kernel size of the convolutions. Default: 4.
        expand (int): Inner width over ``d_model``. Default: 2.
        chunk_size_slow (int): Frames per chunk, slow path. Default: 64.
        chunk_size_fast (int): Frames per chunk, fast path. Default: 64.
        rotation_rank (int or None): Rank of state regramming. Default: 16.
        use_intensity (bool): Intensity-modulated stepping. Default: True.
        use_slow_path (bool): Default: True.
        use_fast_path (bool): Default: True.
        detach_intensity (bool): Whether the intensity net reads detached
            features, as the published code does. Default: True.
        dropout (float): Default: 0.1.
        headdim (int): Width of a head. Default: 64.
        carry_state (bool): False: no memory across clips. Default: True.
        init_cfg (dict, optional): mmengine initialisation config.

    Raises:
        ValueError: If a size is below 1, if ``expand * d_model`` is no
            multiple of ``headdim``, or if the switches leave no path.

    Source: SurgicalMamba (S. Oh, S. Sun, arXiv 2605.14889).
    """

    def __init__(
        self,
        in_channels: int = 768,
        d_model: int = 768,
        num_layers: int = 4,
        d_state: int = 64,
        d_state_slow: int | None = None,
        d_conv: int = 4,
        expand: int = 2,
        chunk_size_slow: int = 64,
        chunk_size_fast: int = 64,
        rotation_rank: int | None = 16,
        use_intensity: bool = True,
        use_slow_path: bool = True,
        use_fast_path: bool = True,
        detach_intensity: bool = True,
        dropout: float = 0.1,
        headdim: int = 64,
        carry_state: bool = True,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(in_channels, d_model, carry_state, init_cfg)
        if num_layers < 1:
            raise ValueError(f'`num_layers` = {num_layers}; expected >= 1')
        self.visual_proj = nn.Sequential(
            nn.Linear(in_channels, d_model), nn.LayerNorm(d_model)
        )
        self.blocks = nn.ModuleList(
            DualPathBlock(
                d_model,
                d_state_slow=d_state if d_state_slow is None else d_state_slow,
                d_state_fast=d_state,
                d_conv=d_conv,
                expand=expand,
                chunk_size_slow=chunk_size_slow,
                chunk_size_fast=chunk_size_fast,
                rotation_rank=rotation_rank,
                use_intensity=use_intensity,
                use_slow_path=use_slow_path,
                use_fast_path=use_fast_path,
                detach_intensity=detach_intensity,
                dropout=dropout,
                headdim=headdim,
            )
            for _ in range(num_layers)
        )
        self.frame_norm = nn.LayerNorm(d_model)

    def init_state(
        self,
        batch_size: int,
        clip_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> SurgicalMambaState:
        """Make the zero state; see :meth:`BaseTemporalModel.init_state`."""
        weight = self.frame_norm.weight
        return SurgicalMambaState(
            clip_len=clip_len,
            blocks=tuple(
                block.init_state(
                    batch_size, device or weight.device, dtype or weight.dtype
                )
                for block in self.blocks
            ),
        )

    def forward_clip(
        self, x: Tensor, state: SurgicalMambaState
    ) -> TemporalOutput:
        """Run a clip and close it."""
        hidden, state, logits = self._run(x, state)
        return TemporalOutput(hidden, self.close_clip(state), logits)

    def step_frame(
        self, x: Tensor, state: SurgicalMambaState
    ) -> TemporalOutput:
        """Run one frame inside the open clip."""
        hidden, state, logits = self._run(x[:, None], state)
        if logits is not None:
            logits = logits[..., 0]
        return TemporalOutput(hidden[:, 0], state, logits)

    def close_clip(self, state: SurgicalMambaState) -> SurgicalMambaState:
        """Rotate the slow states, forget the fast ones."""
        blocks = tuple(
            block.close_clip(block_state)
            for block, block_state in zip(
                self.blocks, state.blocks, strict=True
            )
        )
        return dataclasses.replace(state, blocks=blocks)

    def _run(self, x: Tensor, state: SurgicalMambaState) -> TemporalOutput:
        """Run frames ``(batch, length, in_channels)`` of an open clip."""
        x = self.visual_proj(x)
        block_states, logits = [], []
        for block, block_state in zip(self.blocks, state.blocks, strict=True):
            x, block_state, intensity = block(x, block_state)
            block_states.append(block_state)
            logits += [] if intensity is None else [intensity]
        return TemporalOutput(
            self.frame_norm(x),
            dataclasses.replace(state, blocks=tuple(block_states)),
            torch.stack(logits) if logits else None,
        )
