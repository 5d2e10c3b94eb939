"""Plain single-path Mamba2, the papers' baseline, and the same + rotation."""

import dataclasses

import torch
from torch import Tensor, nn

from mmssm.models.layers.ssd_block import SSDBlock
from mmssm.models.layers.ssd_path import SSDPathState
from mmssm.models.temporal.base import BaseTemporalModel, TemporalOutput
from mmssm.registry import MODELS
from mmssm.structures.temporal_state import ClipClockState


@dataclasses.dataclass
class SSDStackState(ClipClockState):
    """Carried state of a stack of single-path blocks: one per block."""

    blocks: tuple[SSDPathState, ...] = ()


class SSDStack(nn.ModuleList):
    """Single-path blocks run one after the other, with explicit state.

    What :class:`PlainMamba2` and the SSD head share.
    """

    def init_state(
        self,
        batch_size: int,
        clip_len: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> SSDStackState:
        """Make the zero state, by default as the parameters are."""
        weight = self[0].norm.weight
        return SSDStackState(
            clip_len=clip_len,
            blocks=tuple(
                block.init_state(
                    batch_size, device or weight.device, dtype or weight.dtype
                )
                for block in self
            ),
        )

    def forward(
        self, x: Tensor, state: SSDStackState
    ) -> tuple[Tensor, SSDStackState]:
        """Run frames ``(batch, length, d_model)`` of an open clip."""
        block_states = []
        for block, block_state in zip(self, state.blocks, strict=True):
            x, block_state = block(x, block_state)
            block_states.append(block_state)
        return x, dataclasses.replace(state, blocks=tuple(block_states))

    def close_clip(self, state: SSDStackState) -> SSDStackState:
        """Rotate every state by its open chunk."""
        blocks = tuple(
            block.close_clip(block_state)
            for block, block_state in zip(self, state.blocks, strict=True)
        )
        return dataclasses.replace(state, blocks=blocks)


@MODELS.register_module()
class PlainMamba2(BaseTemporalModel):
    """Stack of single-path SSD blocks, carried across clips.

    The baseline of the papers' tables ("plain Mamba2"); with
    ``rotation_rank`` it is "plain + Z".

    Args:
        in_channels (int): Width of the frame features. Default: 768.
        d_model (int): Width of the blocks. Default: 768.
        num_layers (int): Number of blocks. Default: 4.
        d_state (int): State size. Default: 64.
        d_conv (int): Kernel size of the convolution. Default: 4.
        expand (int): Inner width over ``d_model``. Default: 2.
        chunk_size (int): Frames per chunk. Default: 64.
        rotation_rank (int or None): Rank of state regramming. Default: None.
        dropout (float): Default: 0.1.
        headdim (int): Width of a head. Default: 64.
        carry_state (bool): False: no memory across clips. Default: True.
        init_cfg (dict, optional): mmengine initialisation config.

    Source: Mamba2 (arXiv 2405.21060); SurgicalMamba (arXiv 2605.14889).
    """

    def __init__(
        self,
        in_channels: int = 768,
        d_model: int = 768,
        num_layers: int = 4,
        d_state: int = 64,
        d_conv: int = 4,
        expand: int = 2,
        chunk_size: int = 64,
        rotation_rank: int | None = None,
        dropout: float = 0.1,
        headdim: int = 64,
        carry_state: bool = True,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(in_channels, d_model, carry_state, init_cfg)
        self.visual_proj = nn.Sequential(
            nn.Linear(in_channels, d_model), nn.LayerNorm(d_model)
        )
        self.blocks = SSDStack(
            SSDBlock(
                d_model,
                d_state=d_state,
                d_conv=d_conv,
                expand=expand,
                chunk_size=chunk_size,
                rotation_rank=rotation_rank,
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
    ) -> SSDStackState:
        """Make the zero state; see :meth:`BaseTemporalModel.init_state`."""
        return self.blocks.init_state(batch_size, clip_len, device, dtype)

    def forward_clip(self, x: Tensor, state: SSDStackState) -> TemporalOutput:
        """Run a clip and close it."""
        x, state = self.blocks(self.visual_proj(x), state)
        return TemporalOutput(self.frame_norm(x), self.close_clip(state))

    def step_frame(self, x: Tensor, state: SSDStackState) -> TemporalOutput:
        """Run one frame inside the open clip."""
        x, state = self.blocks(self.visual_proj(x[:, None]), state)
        return TemporalOutput(self.frame_norm(x)[:, 0], state)

    def close_clip(self, state: SSDStackState) -> SSDStackState:
        """Rotate every state by its open chunk."""
        return self.blocks.close_clip(state)
