"""Triton backend of the causal depthwise convolution."""

from mmssm.kernels.triton.causal_conv1d_bwd import causal_conv1d_bwd
from mmssm.kernels.triton.causal_conv1d_fwd import causal_conv1d_fwd

__all__ = ['causal_conv1d_bwd', 'causal_conv1d_fwd']
