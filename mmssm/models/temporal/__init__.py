from mmssm.models.temporal.base import BaseTemporalModel, TemporalOutput
from mmssm.models.temporal.framewise import Framewise
from mmssm.models.temporal.memoryless import Memoryless
from mmssm.models.temporal.plain_mamba2 import PlainMamba2
from mmssm.models.temporal.ssd_stack import SSDStackModel
from mmssm.models.temporal.surgical_mamba import (
    SurgicalMamba,
    SurgicalMambaState,
)
from mmssm.structures.temporal_state import ClipClockState, TemporalState

__all__ = [
    'BaseTemporalModel',
    'ClipClockState',
    'Framewise',
    'Memoryless',
    'PlainMamba2',
    'SSDStackModel',
    'SurgicalMamba',
    'SurgicalMambaState',
    'TemporalOutput',
    'TemporalState',
]
