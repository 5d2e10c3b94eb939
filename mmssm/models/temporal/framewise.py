"""No temporal model at all: the per-frame baseline."""

from torch import Tensor, nn

from mmssm.models.temporal.memoryless import Memoryless
from mmssm.registry import MODELS


@MODELS.register_module()
class Framewise(Memoryless):
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

    def per_frame(self, x: Tensor) -> Tensor:
        """Map ``(..., in_channels)`` to ``(..., d_model)``."""
        return self.visual_proj(x)
