"""Causal convolution on the CPU: calls of causal_conv1d.c."""

import ctypes

import torch
from torch import Tensor

from mmssm.kernels.cpu.arguments import (
    TensorArgument,
    added_up,
    in_dtype,
    tensor_argument,
)
from mmssm.kernels.cpu.library import function
from mmssm.ops.precision import working_dtype

# As in causal_conv1d.c.
MAX_WIDTH = 32

_SIZES = (
    *('batch', 'dim', 'length', 'width'),
    *('silu', 'reverse', 'threads'),
)
_INPUTS = ('x', 'weight', 'bias', 'initial_states')
_GRADIENTS = ('dx', 'dweight', 'dbias', 'dinitial_states')


class ForwardArguments(ctypes.Structure):
    """Mirror of ``causal_conv1d_fwd_args`` in causal_conv1d.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, TensorArgument) for name in (*_INPUTS, 'y')),
    ]


class BackwardArguments(ctypes.Structure):
    """Mirror of ``causal_conv1d_bwd_args`` in causal_conv1d.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, TensorArgument) for name in ('grad_y', *_INPUTS)),
        *((name, TensorArgument) for name in _GRADIENTS),
    ]


def causal_conv1d_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
    isa: str | None = None,
) -> Tensor:
    """Convolve all frames.

    Args:
        x (Tensor): Input, shape ``(batch, dim, length)``, any strides.
        weight (Tensor): Filters, shape ``(dim, width)``.
        bias (Tensor, optional): Shape ``(dim,)``.
        initial_states (Tensor, optional): The inputs before the first
            processed one, oldest first, ``(batch, dim, width - 1)``.
        silu (bool): Whether SiLU is applied.
        reverse (bool): Whether the last frame is processed first.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        Tensor: Output in the dtype and layout of ``x``.

    Raises:
        ValueError: If ``width`` is above `MAX_WIDTH`.
        RuntimeError: If the kernels are not there.
    """
    dtype = working_dtype(x.dtype)
    y = torch.empty_like(x, dtype=dtype)
    # Casts live in this list until the kernel has returned.
    inputs = _inputs(dtype, x, weight, bias, initial_states)
    kernel = function('causal_conv1d_fwd', dtype, ForwardArguments, isa)
    kernel(
        ForwardArguments(
            *x.shape,
            *(weight.shape[1], silu, reverse, torch.get_num_threads()),
            *map(tensor_argument, (*inputs, y)),
        )
    )
    return in_dtype(y, x.dtype)


def causal_conv1d_bwd(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
    isa: str | None = None,
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `causal_conv1d_fwd`.

    Args:
        grad_y (Tensor): Gradient of the output, like ``x``.
        x (Tensor): As in the forward pass, like the following ones.
        weight (Tensor): Filters.
        bias (Tensor, optional): Bias.
        initial_states (Tensor, optional): Inputs before the first one.
        silu (bool): Whether SiLU was applied.
        reverse (bool): Whether the last frame was processed first.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor | None, ...]: Gradients of x, weight, bias and the
        initial states; None for absent arguments.

    Raises:
        ValueError: If ``width`` is above `MAX_WIDTH`.
        RuntimeError: If the kernels are not there.
    """
    dtype = working_dtype(x.dtype)
    batch, dim, _ = x.shape
    # Casts live in this list until the kernel has returned.
    inputs = [
        in_dtype(grad_y, dtype),
        *_inputs(dtype, x, weight, bias, initial_states),
    ]
    dx = torch.empty_like(x, dtype=dtype)
    # Partial sums, by batch element.
    dweight = dx.new_empty(batch, *weight.shape)
    dbias = None if bias is None else dx.new_empty(batch, dim)
    dinitial = None
    if initial_states is not None:
        dinitial = torch.empty_like(initial_states, dtype=dtype)
    kernel = function('causal_conv1d_bwd', dtype, BackwardArguments, isa)
    kernel(
        BackwardArguments(
            *x.shape,
            *(weight.shape[1], silu, reverse, torch.get_num_threads()),
            *map(tensor_argument, (*inputs, dx, dweight, dbias, dinitial)),
        )
    )
    return (
        in_dtype(dx, x.dtype),
        added_up(dweight, weight),
        None if bias is None else added_up(dbias, bias),
        None if dinitial is None else in_dtype(dinitial, initial_states.dtype),
    )


def _inputs(
    dtype: torch.dtype,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
) -> list[Tensor | None]:
    """Inputs in the working dtype and the layouts that the kernel takes."""
    if weight.shape[1] > MAX_WIDTH:
        raise ValueError(
            f'`weight` has width {weight.shape[1]}; the native kernel serves '
            f'at most {MAX_WIDTH}, use another backend'
        )
    if initial_states is not None and weight.shape[1] == 1:
        initial_states = None
    return [
        in_dtype(x, dtype),
        in_dtype(weight, dtype).contiguous(),
        in_dtype(bias, dtype),
        in_dtype(initial_states, dtype),
    ]
