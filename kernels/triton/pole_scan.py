"""Triton backend of the pole scan."""

from mmssm.kernels.triton.pole_scan_bwd import pole_scan_bwd
from mmssm.kernels.triton.pole_scan_fwd import pole_scan_fwd

__all__ = ['pole_scan_bwd', 'pole_scan_fwd']
