"""Metrics: pure numpy in ``functional``, for mmengine in ``metrics``."""

from mmssm.evaluation.metrics import PhaseMetric

__all__ = ['PhaseMetric']
