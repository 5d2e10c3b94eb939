"""Models without memory, in the protocol of the temporal models."""

from abc import abstractmethod

import torch
from torch import Tensor

from mmssm.models.temporal.base import BaseTemporalModel, TemporalOutput
from mmssm.structures.temporal_state import ClipClockState


class Memoryless(BaseTemporalModel):
    """A model that sees each frame by itself.

    Subclasses define :meth:`per_frame`; the state only counts frames.
    """

    @abstractmethod
    def per_frame(self, x: Tensor) -> Tensor:
        """Map ``(..., in_channels)`` to ``(..., d_model)``."""

    def init_state(
        self,
        batch_size: int,
        clip_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> ClipClockState:
        """Make a state that only counts frames."""
        return ClipClockState(clip_len=clip_len)

    def forward_clip(self, x: Tensor, state: ClipClockState) -> TemporalOutput:
        """Map every frame of the clip."""
        return TemporalOutput(self.per_frame(x), state)

    def step_frame(self, x: Tensor, state: ClipClockState) -> TemporalOutput:
        """Map one frame."""
        return TemporalOutput(self.per_frame(x), state)

    def close_clip(self, state: ClipClockState) -> ClipClockState:
        """Nothing is remembered, so nothing ends."""
        return state
