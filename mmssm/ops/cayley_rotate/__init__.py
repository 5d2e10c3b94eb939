"""Norm-preserving rotation of a state."""

from mmssm.ops.cayley_rotate.interface import cayley_matrix, cayley_rotate

__all__ = ['cayley_matrix', 'cayley_rotate']
