"""Selective scan on the CPU: calls of selective_scan_fwd.c and _bwd.c."""

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
from mmssm.ops.selective_scan.checkpoints import num_checkpoints

# Channels that a thread takes at once, 4 blocks of 16: they share what is
# read of B and C, and add up what they give to dB and dC. It does not follow
# the number of threads, so that neither do the results.
ITEM_CHANNELS = 64


class ScanInputs(ctypes.Structure):
    """Mirror of ``scan_inputs`` in selective_scan.h."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                'batch',
                'dim',
                'length',
                'state',
                'groups',
                'item_channels',
                'delta_softplus',
                'reverse',
                'threads',
            )
        ),
        *(
            (name, TensorArgument)
            for name in (
                'u',
                'delta',
                'z',
                'A',
                'B',
                'C',
                'D',
                'delta_bias',
                'checkpoints',
            )
        ),
    ]


class ForwardArguments(ctypes.Structure):
    """Mirror of ``forward_arguments`` in selective_scan_fwd.c."""

    _fields_ = [
        ('inputs', ScanInputs),
        ('initial_state', TensorArgument),
        ('y', TensorArgument),
        ('last_state', TensorArgument),
    ]


class BackwardArguments(ctypes.Structure):
    """Mirror of ``backward_arguments`` in selective_scan_bwd.c."""

    _fields_ = [
        ('inputs', ScanInputs),
        ('dB_item', ctypes.c_int64),
        *(
            (name, TensorArgument)
            for name in (
                'grad_y',
                'grad_last_state',
                'du',
                'ddelta',
                'dz',
                'dA',
                'dB',
                'dC',
                'dD',
                'ddelta_bias',
                'dinitial_state',
            )
        ),
    ]


def selective_scan_fwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
    isa: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan all tokens.

    Args:
        u (Tensor): Input, shape ``(batch, dim, length)``, any strides.
        delta (Tensor): Step size before bias and softplus, like ``u``.
        A (Tensor): Decay rates, shape ``(dim, state)``.
        B (Tensor): Shape ``(batch, groups, state, length)``.
        C (Tensor): Like ``B``.
        D (Tensor, optional): Skip, shape ``(dim,)``.
        z (Tensor, optional): Gate, like ``u``.
        delta_bias (Tensor, optional): Shape ``(dim,)``.
        initial_state (Tensor, optional): Shape ``(batch, dim, state)``.
        delta_softplus (bool): Whether softplus is applied to the step size.
        reverse (bool): Whether the last token is processed first.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Output in the dtype and layout of
        ``u``; final state and checkpoints, in the working dtype.
    """
    dtype = working_dtype(u.dtype)
    batch, dim, length = u.shape
    y = torch.empty_like(u, dtype=dtype)
    state = u.new_empty((batch, dim, A.shape[1]), dtype=dtype)
    shape = (batch, num_checkpoints(length), dim, A.shape[1])
    checkpoints = u.new_empty(shape, dtype=dtype)
    # Casts live in this list until the kernel has returned.
    tensors = [
        in_dtype(t, dtype) for t in (u, delta, z, A, B, C, D, delta_bias)
    ]
    initial_state = in_dtype(initial_state, dtype)
    kernel = function('selective_scan_fwd', dtype, ForwardArguments, isa)
    kernel(
        ForwardArguments(
            _inputs([*tensors, checkpoints], delta_softplus, reverse),
            *map(tensor_argument, (initial_state, y, state)),
        )
    )
    return in_dtype(y, u.dtype), state, checkpoints


def selective_scan_bwd(
    grad_y: Tensor,
    grad_last_state: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    checkpoints: Tensor,
    delta_softplus: bool,
    reverse: bool,
    isa: str | None = None,
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `selective_scan_fwd`.

    Args:
        grad_y (Tensor): Gradient of the output, like ``u``.
        grad_last_state (Tensor): Gradient of the final state.
        u (Tensor): As in the forward pass, like the following ones.
        delta (Tensor): Step size before bias and softplus.
        A (Tensor): Decay rates.
        B (Tensor): Input matrix.
        C (Tensor): Output matrix.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        delta_bias (Tensor, optional): Bias of the step size.
        checkpoints (Tensor): Third output of the forward pass.
        delta_softplus (bool): As in the forward pass.
        reverse (bool): As in the forward pass.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor | None, ...]: Gradients of u, delta, A, B, C, D, z,
        delta_bias and the initial state; None for absent arguments.
    """
    dtype = working_dtype(u.dtype)
    batch, dim, _ = u.shape
    items = -(-(dim // B.shape[1]) // ITEM_CHANNELS)
    tensors = [
        in_dtype(t, dtype) for t in (u, delta, z, A, B, C, D, delta_bias)
    ]
    grad_y = in_dtype(grad_y, dtype)
    grad_last_state = in_dtype(grad_last_state, dtype)
    du, ddelta = (torch.empty_like(t, dtype=dtype) for t in (u, delta))
    dz = None if z is None else torch.empty_like(z, dtype=dtype)
    # Partial sums: by batch element, and by work item of a group.
    dA, dinitial_state = (
        u.new_empty((batch, *A.shape), dtype=dtype) for _ in range(2)
    )
    dB, dC = (u.new_empty((items, *B.shape), dtype=dtype) for _ in range(2))
    dD, ddelta_bias = (
        None if t is None else u.new_empty((batch, dim), dtype=dtype)
        for t in (D, delta_bias)
    )
    kernel = function('selective_scan_bwd', dtype, BackwardArguments, isa)
    kernel(
        BackwardArguments(
            _inputs([*tensors, checkpoints], delta_softplus, reverse),
            dB.stride(0),
            *map(
                tensor_argument,
                (
                    grad_y,
                    grad_last_state,
                    du,
                    ddelta,
                    dz,
                    dA,
                    dB[0],
                    dC[0],
                    dD,
                    ddelta_bias,
                    dinitial_state,
                ),
            ),
        )
    )
    return (
        in_dtype(du, u.dtype),
        in_dtype(ddelta, delta.dtype),
        added_up(dA, A),
        added_up(dB, B),
        added_up(dC, C),
        None if D is None else added_up(dD, D),
        None if z is None else in_dtype(dz, z.dtype),
        None if delta_bias is None else added_up(ddelta_bias, delta_bias),
        dinitial_state,
    )


def _inputs(
    tensors: list[Tensor | None], delta_softplus: bool, reverse: bool
) -> ScanInputs:
    batch, dim, length = tensors[0].shape
    _, groups, state, _ = tensors[4].shape
    return ScanInputs(
        batch,
        dim,
        length,
        state,
        groups,
        ITEM_CHANNELS,
        delta_softplus,
        reverse,
        torch.get_num_threads(),
        *map(tensor_argument, tensors),
    )
