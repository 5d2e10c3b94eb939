"""Causal depthwise convolution with explicit state."""

from mmssm.ops.causal_conv1d.interface import causal_conv1d, causal_conv1d_step

__all__ = ['causal_conv1d', 'causal_conv1d_step']
