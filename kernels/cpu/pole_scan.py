"""Binding of pole_scan.c: the `native` backend of the pole scan."""

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

# Both as in pole_scan.c.
MAX_ORDER = 32
SLAB = 128


_SIZES = (
    *('batch', 'length', 'channels', 'groups', 'order'),
    *('reverse', 'threads'),
)
_INPUTS = ('q', 'x', 'D', 'z', 'initial_history')
_GRADIENTS = ('deta', 'dq', 'dx', 'dD', 'dz', 'dinitial_history')


class ForwardArguments(ctypes.Structure):
    """Mirror of ``pole_scan_fwd_args`` in pole_scan.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, TensorArgument) for name in ('eta', *_INPUTS)),
        *((name, TensorArgument) for name in ('y', 'out', 'final_history')),
    ]


class BackwardArguments(ctypes.Structure):
    """Mirror of ``pole_scan_bwd_args`` in pole_scan.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (*_SIZES, 'dq_slab')),
        ('grad_out', TensorArgument),
        ('grad_final_history', TensorArgument),
        *((name, TensorArgument) for name in ('y', *_INPUTS, *_GRADIENTS)),
    ]


def pole_scan_fwd(
    eta: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    reverse: bool,
    isa: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan with skip and gate in one pass.

    Args:
        eta (Tensor): Input, shape ``(batch, length, channels)``.
        q (Tensor): Coefficients, shape ``(batch, length, groups, order)``.
        x (Tensor, optional): Input of the skip, like ``eta``.
        D (Tensor, optional): Skip, shape ``(channels,)``.
        z (Tensor, optional): Gate, like ``eta``.
        initial_history (Tensor, optional): Outputs before the first processed
            token, most recent first, ``(batch, order, channels)``.
        reverse (bool): Whether the last token is processed first.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Output like ``eta``, final history and
        the output before skip and gate; the last one is empty where it is
        the output itself.

    Raises:
        ValueError: If ``order`` is above `MAX_ORDER`.
        RuntimeError: If the kernels are not there.
    """
    dtype = working_dtype(eta.dtype)
    batch, length, channels = eta.shape
    groups, order = q.shape[2:]
    # Casts live in this list until the kernel has returned.
    inputs = [
        in_dtype(t, dtype) for t in (eta, _dense(q), x, D, z, initial_history)
    ]
    y = torch.empty_like(eta, dtype=dtype)
    out = None if x is None and z is None else torch.empty_like(y)
    final_history = y.new_empty(batch, order, channels)
    kernel = function('pole_scan_fwd', dtype, ForwardArguments, isa)
    kernel(
        ForwardArguments(
            *(batch, length, channels, groups, order),
            *(reverse, torch.get_num_threads()),
            *map(tensor_argument, (*inputs, y, out, final_history)),
        )
    )
    if out is not None:
        return in_dtype(out, eta.dtype), final_history, y
    if eta.dtype != dtype:
        return y.to(eta.dtype), final_history, y
    return y, final_history, y.new_empty(0)


def pole_scan_bwd(
    grad_out: Tensor,
    grad_final_history: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    y: Tensor,
    eta_dtype: torch.dtype,
    reverse: bool,
    isa: str | None = None,
) -> tuple[Tensor | None, ...]:
    """Adjoint of `pole_scan_fwd`.

    Args:
        grad_out (Tensor): Gradient of the output.
        grad_final_history (Tensor): Gradient of the final history.
        q (Tensor): As in `pole_scan_fwd`, like the next four and ``reverse``.
        x (Tensor, optional): See there.
        D (Tensor, optional): See there.
        z (Tensor, optional): See there.
        initial_history (Tensor, optional): See there.
        y (Tensor): Output before skip and gate, in the working dtype.
        eta_dtype (torch.dtype): Dtype of ``eta``.
        reverse (bool): See there.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor or None, ...]: Gradients of ``eta``, ``q``, ``x``, ``D``,
        ``z`` and ``initial_history``, None where the input is absent.

    Raises:
        ValueError: If ``order`` is above `MAX_ORDER`.
        RuntimeError: If the kernels are not there.
    """
    dtype = y.dtype
    batch, length, channels = y.shape
    groups, order = q.shape[2:]
    # Casts live in this list until the kernel has returned.
    tensors = [
        *(in_dtype(t, dtype) for t in (grad_out, grad_final_history, y)),
        *(in_dtype(t, dtype) for t in (_dense(q), x, D, z, initial_history)),
    ]
    # Partial sums: by slab of the channels of a group, and by batch element.
    slabs = -(-(channels // groups) // SLAB)
    dq = y.new_empty(slabs, batch, length, groups, order)
    dD = None if D is None else y.new_empty(batch, channels)
    deta = torch.empty_like(y)
    dx, dz, dinitial_history = (
        None if t is None else torch.empty_like(t, dtype=dtype)
        for t in (x, z, initial_history)
    )
    gradients = (deta, dq[0], dx, dD, dz, dinitial_history)
    kernel = function('pole_scan_bwd', dtype, BackwardArguments, isa)
    kernel(
        BackwardArguments(
            *(batch, length, channels, groups, order),
            *(reverse, torch.get_num_threads(), dq.stride(0)),
            *map(tensor_argument, (*tensors, *gradients)),
        )
    )
    return (
        in_dtype(deta, eta_dtype),
        added_up(dq, q),
        None if x is None else in_dtype(dx, x.dtype),
        None if D is None else added_up(dD, D),
        None if z is None else in_dtype(dz, z.dtype),
        None
        if initial_history is None
        else in_dtype(dinitial_history, initial_history.dtype),
    )


def _dense(q: Tensor) -> Tensor:
    """Check the order, and lay the coefficients of a token side by side."""
    if q.shape[-1] > MAX_ORDER:
        raise ValueError(
            f'`q` has order {q.shape[-1]}; the native kernel serves at most '
            f'{MAX_ORDER}, use another backend'
        )
    return q if q.stride(-1) == 1 else q.contiguous()
