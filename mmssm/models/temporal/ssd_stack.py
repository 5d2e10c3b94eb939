"""Stacks of single-path SSD blocks, in the protocol of temporal models."""

import dataclasses
from abc import abstractmethod

import torch
from torch import Tensor, nn

from mmssm.models.layers.ssd_path import SSDPathState
from mmssm.models.temporal.base import BaseTemporalModel, TemporalOutput
from mmssm.structures.temporal_state import ClipClockState


@dataclasses.dataclass
class SSDStackState(ClipClockState):
    """Carried state of a stack of single-path blocks: one per block."""

    blocks: tuple[SSDPathState, ...] = ()


class SSDStackModel(BaseTemporalModel):
    """A model whose memory is a stack of :class:`SSDBlock`.

    Subclasses set ``blocks`` and define what comes before and after them.
    """

    blocks: nn.ModuleList

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Map ``(batch, length, in_channels)`` to the width of the blocks."""

    @abstractmethod
    def decode(self, x: Tensor) -> Tensor:
        """Map what the blocks give to ``(batch, length, d_model)``."""

    def init_state(
        self,
        batch_size: int,
        clip_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> SSDStackState:
        """Make the zero state; see :meth:`BaseTemporalModel.init_state`."""
        weight = self.blocks[0].norm.weight
        return SSDStackState(
            clip_len=clip_len,
            blocks=tuple(
                block.init_state(
                    batch_size, device or weight.device, dtype or weight.dtype
                )
                for block in self.blocks
            ),
        )

    def forward_clip(self, x: Tensor, state: SSDStackState) -> TemporalOutput:
        """Run a clip and close it."""
        hidden, state = self._run(x, state)
        return TemporalOutput(hidden, self.close_clip(state))

    def step_frame(self, x: Tensor, state: SSDStackState) -> TemporalOutput:
        """Run one frame inside the open clip."""
        hidden, state = self._run(x[:, None], state)
        return TemporalOutput(hidden[:, 0], state)

    def close_clip(self, state: SSDStackState) -> SSDStackState:
        """Rotate every state by its open chunk."""
        blocks = tuple(
            block.close_clip(block_state)
            for block, block_state in zip(
                self.blocks, state.blocks, strict=True
            )
        )
        return dataclasses.replace(state, blocks=blocks)

    def _run(
        self, x: Tensor, state: SSDStackState
    ) -> tuple[Tensor, SSDStackState]:
        """Run frames ``(batch, length, in_channels)`` of an open clip."""
        x = self.encode(x)
        block_states = []
        for block, block_state in zip(self.blocks, state.blocks, strict=True):
            x, block_state = block(x, block_state)
            block_states.append(block_state)
        return self.decode(x), dataclasses.replace(
            state, blocks=tuple(block_states)
        )
