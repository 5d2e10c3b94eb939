from mmssm.structures.phase_data_sample import PhaseDataSample

__all__ = ['PhaseDataSample']
