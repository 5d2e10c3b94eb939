from mmssm.datasets.base_surgical_dataset import (
    IGNORE_INDEX,
    BaseVideoPhaseDataset,
)
from mmssm.datasets.cholec80 import (
    CHOLEC80_PHASES,
    CHOLEC80_SPLITS,
    Cholec80Dataset,
)
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
    'CHOLEC80_PHASES',
    'CHOLEC80_SPLITS',
    'IGNORE_INDEX',
    'BaseVideoPhaseDataset',
    'Cholec80Dataset',
    'ClipColorJitter',
    'ClipIndex',
    'ClipPipeline',
    'LaneBatchSampler',
    'LoadFrames',
    'RGBShift',
    'ShuffledFrameSampler',
    'TorchVisionTransform',
    'VideoFlip',
    'VideoOrderSampler',
    'WindowIndex',
]
