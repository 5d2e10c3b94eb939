"""Operators: functions on tensors, with no module, config or registry."""

from mmssm.ops.causal_conv1d import causal_conv1d, causal_conv1d_step
from mmssm.ops.cayley_rotate import cayley_matrix, cayley_rotate
from mmssm.ops.ssd_chunk_scan import ssd_chunk_scan, ssd_step

__all__ = [
    'causal_conv1d',
    'causal_conv1d_step',
    'cayley_matrix',
    'cayley_rotate',
    'ssd_chunk_scan',
    'ssd_step',
]
