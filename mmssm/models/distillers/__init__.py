from mmssm.models.distillers.feature_distiller import FeatureDistiller
from mmssm.models.distillers.losses import FeatureL1Loss, SoftTargetLoss

__all__ = ['FeatureDistiller', 'FeatureL1Loss', 'SoftTargetLoss']
