"""Coefficients of the filter that token-conditioned poles make."""

from mmssm.ops.pole_denominator.interface import pole_denominator, token_poles

__all__ = ['pole_denominator', 'token_poles']
