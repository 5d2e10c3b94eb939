"""The one precision rule of states, decays and rotations."""

from torch import Tensor

from mmssm.ops.precision import working_dtype


def at_least_float32(t: Tensor) -> Tensor:
    """Cast half precision to float32; leave float32 and float64 alone."""
    return t.to(working_dtype(t.dtype))
