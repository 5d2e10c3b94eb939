"""Operators: functions on tensors, with no module, config or registry."""

from mmssm.ops.causal_conv1d import causal_conv1d, causal_conv1d_step
from mmssm.ops.cayley_rotate import cayley_matrix, cayley_rotate
from mmssm.ops.modal_scan import modal_scan, modal_scan_step
from mmssm.ops.pole_denominator import pole_denominator, token_poles
from mmssm.ops.pole_scan import pole_scan, pole_scan_step
from mmssm.ops.rms_norm_gated import rms_norm_gated
from mmssm.ops.selective_scan import selective_scan, selective_scan_step
from mmssm.ops.ssd_chunk_scan import ssd_chunk_scan, ssd_step

__all__ = [
    'causal_conv1d',
    'causal_conv1d_step',
    'cayley_matrix',
    'cayley_rotate',
    'modal_scan',
    'modal_scan_step',
    'pole_denominator',
    'pole_scan',
    'pole_scan_step',
    'rms_norm_gated',
    'selective_scan',
    'selective_scan_step',
    'ssd_chunk_scan',
    'ssd_step',
    'token_poles',
]
