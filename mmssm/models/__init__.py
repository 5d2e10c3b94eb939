from mmssm.models.backbones import StridedConvNet, TimmBackbone
from mmssm.models.data_preprocessors import PhaseDataPreprocessor
from mmssm.models.heads import BasePhaseHead, LinearPhaseHead, PhaseHead
from mmssm.models.losses import (
    ConfidenceSmoothnessLoss,
    PhaseCrossEntropyLoss,
    TransitionIntensityLoss,
)
from mmssm.models.recognizers import PhaseRecognizer, RecognizerState
from mmssm.models.temporal import (
    BaseTemporalModel,
    Framewise,
    PlainMamba2,
    SurgicalMamba,
)

__all__ = [
    'BasePhaseHead',
    'BaseTemporalModel',
    'ConfidenceSmoothnessLoss',
    'Framewise',
    'LinearPhaseHead',
    'PhaseCrossEntropyLoss',
    'PhaseDataPreprocessor',
    'PhaseHead',
    'PhaseRecognizer',
    'PlainMamba2',
    'RecognizerState',
    'StridedConvNet',
    'SurgicalMamba',
    'TimmBackbone',
    'TransitionIntensityLoss',
]
