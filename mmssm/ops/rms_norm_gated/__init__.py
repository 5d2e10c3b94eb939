"""Root-mean-square normalisation with a gate."""

from mmssm.ops.rms_norm_gated.interface import rms_norm_gated

__all__ = ['rms_norm_gated']
