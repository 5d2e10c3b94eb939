"""Triton backend of the pole denominator."""

from mmssm.kernels.triton.pole_denominator_bwd import pole_denominator_bwd
from mmssm.kernels.triton.pole_denominator_fwd import pole_denominator_fwd

__all__ = ['pole_denominator_bwd', 'pole_denominator_fwd']
