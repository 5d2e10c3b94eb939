"""Tensors as the C kernels take them."""

import ctypes

import torch
from torch import Tensor


class TensorArgument(ctypes.Structure):
    """Mirror of ``tensor`` in common.h: first element and strides.

    The strides are an array there; single fields are filled in half the time.
    """

    _fields_ = [
        ('data', ctypes.c_void_p),
        *((f'stride_{axis}', ctypes.c_int64) for axis in range(4)),
    ]


_ABSENT = TensorArgument()


def tensor_argument(tensor: Tensor | None) -> TensorArgument:
    """Describe a tensor to a kernel.

    Args:
        tensor (Tensor, optional): Tensor of at most 4 axes, in the dtype the
            kernel computes in. It has to live until the kernel has returned.

    Returns:
        TensorArgument: What the kernel reads; a null pointer for None.
    """
    if tensor is None:
        return _ABSENT
    return TensorArgument(tensor.data_ptr(), *tensor.stride())


def in_dtype(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Cast a tensor, if it is there, in its memory layout."""
    # Asked first: `to` costs as much as the rest of a small call.
    if tensor is None or tensor.dtype == dtype:
        return tensor
    return tensor.to(dtype)


def added_up(parts: Tensor, like: Tensor) -> Tensor:
    """Add up partial sums in a fixed order.

    Args:
        parts (Tensor): Partial sums, shape ``(parts, *like.shape)``.
        like (Tensor): Tensor whose dtype and memory layout the sum takes.

    Returns:
        Tensor: The sum.
    """
    if len(parts) == 1 and like.is_contiguous():
        return in_dtype(parts[0], like.dtype)
    return torch.empty_like(like).copy_(parts.sum(0))
