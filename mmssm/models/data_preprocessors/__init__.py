from mmssm.models.data_preprocessors.phase_data_preprocessor import (
    PhaseDataPreprocessor,
)

__all__ = ['PhaseDataPreprocessor']
