from mmssm.datasets.transforms.augmentation import (
    ClipColorJitter,
    RGBShift,
    VideoFlip,
)
from mmssm.datasets.transforms.loading import LoadFrames
from mmssm.datasets.transforms.pipeline import ClipPipeline
from mmssm.datasets.transforms.torchvision_wrapper import TorchVisionTransform

__all__ = [
    'ClipColorJitter',
    'ClipPipeline',
    'LoadFrames',
    'RGBShift',
    'TorchVisionTransform',
    'VideoFlip',
]
