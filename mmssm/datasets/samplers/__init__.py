from mmssm.datasets.samplers.indices import (
    EMPTY_CLIP,
    ClipIndex,
    WindowIndex,
)
from mmssm.datasets.samplers.lane_batch_sampler import LaneBatchSampler
from mmssm.datasets.samplers.shuffled_frame_sampler import (
    ShuffledFrameSampler,
)
from mmssm.datasets.samplers.video_order_sampler import VideoOrderSampler

__all__ = [
    'EMPTY_CLIP',
    'ClipIndex',
    'LaneBatchSampler',
    'ShuffledFrameSampler',
    'VideoOrderSampler',
    'WindowIndex',
]
