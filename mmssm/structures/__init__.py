from mmssm.structures.phase_data_sample import PhaseDataSample
from mmssm.structures.temporal_state import ClipClockState, TemporalState

__all__ = ['ClipClockState', 'PhaseDataSample', 'TemporalState']
