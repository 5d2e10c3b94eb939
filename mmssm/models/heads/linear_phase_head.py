"""Linear classifier per frame."""

import torch
from torch import Tensor

from mmssm.models.heads.base_phase_head import BasePhaseHead
from mmssm.models.temporal.base import TemporalOutput
from mmssm.registry import MODELS
from mmssm.structures.temporal_state import ClipClockState


@MODELS.register_module()
class LinearPhaseHead(BasePhaseHead):
    """Dropout and a Linear, for baselines and for warm starts.

    Args: see :class:`BasePhaseHead`.
    """

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
        """Classify every frame of the clip."""
        return TemporalOutput(self.fc(self.drop(x)), state)

    def step_frame(self, x: Tensor, state: ClipClockState) -> TemporalOutput:
        """Classify one frame."""
        return TemporalOutput(self.fc(self.drop(x)), state)

    def close_clip(self, state: ClipClockState) -> ClipClockState:
        """Nothing is remembered, so nothing ends."""
        return state
