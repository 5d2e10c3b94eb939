from mmssm.models.losses.confidence_smoothness_loss import (
    ConfidenceSmoothnessLoss,
)
from mmssm.models.losses.phase_cross_entropy_loss import PhaseCrossEntropyLoss
from mmssm.models.losses.transition_intensity_loss import (
    TransitionIntensityLoss,
    transition_target,
)

__all__ = [
    'ConfidenceSmoothnessLoss',
    'PhaseCrossEntropyLoss',
    'TransitionIntensityLoss',
    'transition_target',
]
