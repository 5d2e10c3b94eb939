"""No temporal model at all: the per-frame baseline."""

import torch
from torch import Tensor, nn

from mmssm.models.temporal.base import BaseTemporalModel, TemporalOutput
from mmssm.registry import MODELS
from mmssm.structures.temporal_state import ClipClockState


@MODELS.register_module()
class Framewise(BaseTemporalModel):
    """Project each frame by itself; no frame sees another.

    Args:
        in_channels (int): Width of the frame features.
        d_model (int): Width of the output.
        init_cfg (dict, optional): mmengine initialisation config.
    """

    def __init__(
        self,
        in_channels: int,
        d_model: int,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(
            in_channels, d_model, carry_state=False, init_cfg=init_cfg
        )
        self.visual_proj = nn.Sequential(
            nn.Linear(in_channels, d_model), nn.LayerNorm(d_model)
        )

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
        """Project every frame of the clip."""
        return TemporalOutput(self.visual_proj(x), state)

    def step_frame(self, x: Tensor, state: ClipClockState) -> TemporalOutput:
        """Project one frame."""
        return TemporalOutput(self.visual_proj(x), state)

    def close_clip(self, state: ClipClockState) -> ClipClockState:
        """Nothing is remembered, so nothing ends."""
        return state
