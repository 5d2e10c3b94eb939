from mmssm.models.layers.dual_path_block import DualPathBlock, DualPathState
from mmssm.models.layers.ffn import FeedForward
from mmssm.models.layers.per_head_mlp import PerHeadMLP
from mmssm.models.layers.rms_norm import GatedRMSNorm
from mmssm.models.layers.ssd_block import SSDBlock
from mmssm.models.layers.ssd_path import SSDPath, SSDPathState
from mmssm.models.layers.state_regramming import (
    RotationPlanes,
    StateRegramming,
)

__all__ = [
    'DualPathBlock',
    'DualPathState',
    'FeedForward',
    'GatedRMSNorm',
    'PerHeadMLP',
    'RotationPlanes',
    'SSDBlock',
    'SSDPath',
    'SSDPathState',
    'StateRegramming',
]
