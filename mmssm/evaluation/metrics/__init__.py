from mmssm.evaluation.metrics.phase_metric import PhaseMetric

__all__ = ['PhaseMetric']
