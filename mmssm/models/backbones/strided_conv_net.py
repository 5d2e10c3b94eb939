"""A small convolutional network for small frames."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmssm.registry import MODELS


@MODELS.register_module()
class StridedConvNet(BaseModule):
    """Strided 3x3 convolutions with GroupNorm and GELU.

    Small enough to train from scratch on a laptop's CPU with frames of 64
    pixels. It has no batch statistics, which would leak between the frames
    of a video.

    Args:
        channels (Sequence[int]): Output channels of the stages, each of
            which halves the resolution. Default: (16, 32, 64, 128).
        in_channels (int): Default: 3.
        init_cfg (dict, optional): mmengine initialisation config.
    """

    def __init__(
        self,
        channels: Sequence[int] = (16, 32, 64, 128),
        in_channels: int = 3,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        stages = []
        for width in channels:
            stages.append(
                nn.Sequential(
                    nn.Conv2d(in_channels, width, 3, stride=2, padding=1),
                    nn.GroupNorm(1, width),
                    nn.GELU(),
                )
            )
            in_channels = width
        self.stages = nn.Sequential(*stages)
        self.out_channels = in_channels

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Map ``(batch, 3, height, width)`` to a tuple of one feature map."""
        # Several times faster on a CPU for maps this small.
        x = x.contiguous(memory_format=torch.channels_last)
        return (self.stages(x),)
