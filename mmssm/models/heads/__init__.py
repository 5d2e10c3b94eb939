from mmssm.models.heads.base_phase_head import BasePhaseHead
from mmssm.models.heads.linear_phase_head import LinearPhaseHead
from mmssm.models.heads.phase_head import PhaseHead

__all__ = ['BasePhaseHead', 'LinearPhaseHead', 'PhaseHead']
