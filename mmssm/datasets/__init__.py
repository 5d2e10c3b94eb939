from mmssm.datasets.autolaparo import AUTOLAPARO_SPLITS, AutoLaparoDataset
from mmssm.datasets.base_surgical_dataset import (
    IGNORE_INDEX,
    BaseVideoPhaseDataset,
)
from mmssm.datasets.cholec80 import (
    CHOLEC80_PHASES,
    CHOLEC80_SPLITS,
    Cholec80Dataset,
)
from mmssm.datasets.digits import Digits
from mmssm.datasets.m2cai16 import M2CAI16_SPLITS, M2CAI16Dataset
from mmssm.datasets.samplers import (
    ClipIndex,
    LaneBatchSampler,
    ShuffledFrameSampler,
    VideoOrderSampler,
    WindowIndex,
)
from mmssm.datasets.transforms import (
    ClipColorJitter,
    ClipPipeline,
    LoadFrames,
    RGBShift,
    TorchVisionTransform,
    VideoFlip,
)

__all__ = [
    'AUTOLAPARO_SPLITS',
    'AutoLaparoDataset',
    'M2CAI16Dataset',
    'M2CAI16_SPLITS',
    'CHOLEC80_PHASES',
    'CHOLEC80_SPLITS',
    'IGNORE_INDEX',
    'BaseVideoPhaseDataset',
    'Cholec80Dataset',
    'ClipColorJitter',
    'ClipIndex',
    'ClipPipeline',
    'Digits',
    'LaneBatchSampler',
    'LoadFrames',
    'RGBShift',
    'ShuffledFrameSampler',
    'TorchVisionTransform',
    'VideoFlip',
    'VideoOrderSampler',
    'WindowIndex',
]
