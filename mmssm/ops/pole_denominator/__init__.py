"""Coefficients of the filter that token-conditioned poles make."""

from mmssm.ops.pole_denominator.interface import pole_denominator

__all__ = ['pole_denominator']
