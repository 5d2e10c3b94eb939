from mmssm.models.temporal.base import BaseTemporalModel, TemporalOutput
from mmssm.models.temporal.framewise import Framewise
from mmssm.models.temporal.plain_mamba2 import PlainMamba2
from mmssm.models.temporal.surgical_mamba import (
    SurgicalMamba,
    SurgicalMambaState,
)
from mmssm.structures.temporal_state import ClipClockState, TemporalState

__all__ = [
    'BaseTemporalModel',
    'ClipClockState',
    'Framewise',
    'PlainMamba2',
    'SurgicalMamba',
    'SurgicalMambaState',
    'TemporalOutput',
    'TemporalState',
]
