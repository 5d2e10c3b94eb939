from mmssm.models.backbones import (
    StridedConvNet,
    TCPVim,
    TimmBackbone,
    Vim,
)
from mmssm.models.data_preprocessors import PhaseDataPreprocessor
from mmssm.models.distillers import (
    FeatureDistiller,
    FeatureL1Loss,
    SoftTargetLoss,
)
from mmssm.models.heads import BasePhaseHead, LinearPhaseHead, PhaseHead
from mmssm.models.layers.bidirectional_mixer import (
    PoleMixer,
    SelectiveScanMixer,
)
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
    'FeatureDistiller',
    'FeatureL1Loss',
    'Framewise',
    'LinearPhaseHead',
    'PhaseCrossEntropyLoss',
    'PhaseDataPreprocessor',
    'PhaseHead',
    'PhaseRecognizer',
    'PlainMamba2',
    'PoleMixer',
    'RecognizerState',
    'SelectiveScanMixer',
    'SoftTargetLoss',
    'StridedConvNet',
    'SurgicalMamba',
    'TCPVim',
    'TimmBackbone',
    'TransitionIntensityLoss',
    'Vim',
]
