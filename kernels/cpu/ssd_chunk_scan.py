"""The SSD recurrence on the CPU: calls of ssd_chunk_scan_fwd.c and _bwd.c."""

import ctypes

import torch
from torch import Tensor

from mmssm.kernels.cpu.arguments import (
    TensorArgument,
    in_dtype,
    tensor_argument,
)
from mmssm.kernels.cpu.library import function
from mmssm.ops.precision import working_dtype
from mmssm.ops.ssd_chunk_scan.chunks import kept_numbers, kernel_chunk_size

# Heads of a group that a thread takes at once: they share what is made of B
# and C, and add up what they give to dB and dC. It does not follow the number
# of threads, so that neither do the results.
ITEM_HEADS = 4


class ScanInputs(ctypes.Structure):
    """Mirror of ``scan_inputs`` in ssd_chunk_scan.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ('batch', 'length', 'heads')),
        *((name, ctypes.c_int64) for name in ('headdim', 'state', 'groups')),
        *((name, ctypes.c_int64) for name in ('chunk', 'item_heads')),
        *((name, ctypes.c_int64) for name in ('dt_softplus', 'threads')),
        *((name, TensorArgument) for name in ('x', 'z', 'dt', 'A')),
        *((name, TensorArgument) for name in ('dt_bias', 'B', 'C', 'D')),
        *((name, TensorArgument) for name in ('seq_idx', 'initial_states')),
        ('chunk_states', TensorArgument),
    ]


class ForwardArguments(ctypes.Structure):
    """Mirror of ``forward_arguments`` in ssd_chunk_scan_fwd.c."""

    _fields_ = [
        ('inputs', ScanInputs),
        ('y', TensorArgument),
        ('final_states', TensorArgument),
    ]


class BackwardArguments(ctypes.Structure):
    """Mirror of ``backward_arguments`` in ssd_chunk_scan_bwd.c."""

    _fields_ = [
        ('inputs', ScanInputs),
        ('part_stride', ctypes.c_int64),
        *((name, TensorArgument) for name in ('grad_y', 'grad_final_states')),
        *((name, TensorArgument) for name in ('dx', 'dz', 'ddt', 'dA')),
        *((name, TensorArgument) for name in ('ddt_bias', 'dB', 'dC', 'dD')),
        ('dinitial_states', TensorArgument),
    ]


def ssd_chunk_scan_fwd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    chunk_size: int,
    dt_softplus: bool,
    isa: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan all frames.

    Args:
        x (Tensor): Input, shape ``(batch, length, heads, headdim)``, any
            strides.
        dt (Tensor): Step size before bias and softplus, shape
            ``(batch, length, heads)``.
        A (Tensor): Decay rate, shape ``(heads,)``.
        B (Tensor): Input matrix, shape ``(batch, length, groups, state)``.
        C (Tensor): Output matrix, like ``B``.
        D (Tensor, optional): Skip, ``(heads,)`` or ``(heads, headdim)``.
        z (Tensor, optional): Gate, like ``x``.
        dt_bias (Tensor, optional): Shape ``(heads,)``.
        seq_idx (Tensor, optional): Numbers of packed sequences, shape
            ``(batch, length)``; where it changes, the state is set to zero.
        initial_states (Tensor, optional): State before the first frame,
            shape ``(batch, heads, headdim, state)``.
        chunk_size (int): Frames per chunk, see `kernel_chunk_size`.
        dt_softplus (bool): Whether softplus is applied to the step size.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Output in the dtype and layout of
        ``x``; final state, and what `kept_numbers` says of the states before
        the chunks, in the working dtype.
    """
    dtype = working_dtype(x.dtype)
    batch, length, heads, headdim = x.shape
    shape = (batch, heads, headdim, B.shape[-1])
    y = torch.empty_like(x, dtype=dtype)
    final_states = x.new_empty(shape, dtype=dtype)
    kept = kept_numbers(length, chunk_size, final_states.numel())
    chunk_states = x.new_empty(kept, dtype=dtype)
    chunk_states[-2:] = 0
    # Casts live in these until the kernel has returned.
    inputs = x, z, dt, A, dt_bias, B, C, D
    tensors = _prepared(inputs, seq_idx, initial_states, dtype)
    kernel = function('ssd_chunk_scan_fwd', dtype, ForwardArguments, isa)
    kernel(
        ForwardArguments(
            _inputs(tensors, chunk_states, chunk_size, dt_softplus),
            *map(tensor_argument, (y, final_states)),
        )
    )
    return y.to(x.dtype), final_states, chunk_states


def ssd_chunk_scan_bwd(
    grad_y: Tensor,
    grad_final_states: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    chunk_states: Tensor,
    chunk_size: int,
    dt_softplus: bool,
    isa: str | None = None,
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `ssd_chunk_scan_fwd`.

    Args:
        grad_y (Tensor): Gradient of the output, like ``x``.
        grad_final_states (Tensor): Gradient of the final state.
        x (Tensor): As in the forward pass, like the following ones.
        dt (Tensor): Step size before bias and softplus.
        A (Tensor): Decay rate.
        B (Tensor): Input matrix.
        C (Tensor): Output matrix.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        dt_bias (Tensor, optional): Bias of the step size.
        seq_idx (Tensor, optional): Numbers of packed sequences.
        initial_states (Tensor, optional): State before the first frame.
        chunk_states (Tensor): Third output of the forward pass.
        chunk_size (int): As in the forward pass.
        dt_softplus (bool): As in the forward pass.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor | None, ...]: Gradients of x, dt, A, B, C, D, z, dt_bias
        and the initial state; None for absent arguments.
    """
    dtype = working_dtype(x.dtype)
    batch, heads, headdim = x.shape[0], *x.shape[2:]
    inputs = x, z, dt, A, dt_bias, B, C, D
    tensors = _prepared(inputs, seq_idx, initial_states, dtype)
    grad_y, grad_final_states = grad_y.to(dtype), grad_final_states.to(dtype)
    dx, dz, ddt, dinitial_states = (
        None if t is None else torch.empty_like(t, dtype=dtype)
        for t in (x, z, dt, initial_states)
    )
    # Partial sums: by batch element, and by work item of a group.
    dA, dbias = (
        None if t is None else x.new_empty((batch, heads), dtype=dtype)
        for t in (A, dt_bias)
    )
    dD = None
    if D is not None:
        dD = x.new_empty((batch, heads, headdim), dtype=dtype)
    items = -(-(heads // B.shape[2]) // ITEM_HEADS)
    dB, dC = (
        [torch.empty_like(t, dtype=dtype)]
        if items == 1
        else t.new_empty((items, *t.shape), dtype=dtype)
        for t in (B, C)
    )
    kernel = function('ssd_chunk_scan_bwd', dtype, BackwardArguments, isa)
    kernel(
        BackwardArguments(
            _inputs(tensors, chunk_states, chunk_size, dt_softplus),
            B.numel(),
            *map(tensor_argument, (grad_y, grad_final_states, dx, dz, ddt)),
            *map(tensor_argument, (dA, dbias, dB[0], dC[0], dD)),
            tensor_argument(dinitial_states),
        )
    )
    if D is not None and D.ndim == 1:
        dD = dD.sum((0, 2)).unsqueeze(0)
    return (
        dx.to(x.dtype),
        ddt.to(dt.dtype),
        _added_up(dA, A),
        _added_up(dB, B),
        _added_up(dC, C),
        _added_up(dD, D),
        None if z is None else dz.to(z.dtype),
        _added_up(dbias, dt_bias),
        in_dtype(
            dinitial_states,
            None if initial_states is None else initial_states.dtype,
        ),
    )


def _prepared(
    tensors: tuple[Tensor | None, ...],
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    dtype: torch.dtype,
) -> list[Tensor | None]:
    """Cast the inputs, in the order in which the kernels take them."""
    inputs = [in_dtype(tensor, dtype) for tensor in tensors]
    seq_idx = in_dtype(seq_idx, torch.int32)
    return [*inputs, seq_idx, in_dtype(initial_states, dtype)]


def _inputs(
    tensors: list[Tensor | None],
    chunk_states: Tensor,
    chunk_size: int,
    dt_softplus: bool,
) -> ScanInputs:
    x, B = tensors[0], tensors[5]
    groups, state = B.shape[2:]
    return ScanInputs(
        *(*x.shape, state, groups),
        kernel_chunk_size(chunk_size),
        min(ITEM_HEADS, x.shape[2] // groups),
        dt_softplus,
        torch.get_num_threads(),
        *map(tensor_argument, tensors),
        tensor_argument(_by_chunk(chunk_states, x, state)),
    )


def _by_chunk(chunk_states: Tensor, x: Tensor, state: int) -> Tensor:
    """View what is kept as (batch, chunks - 1, heads * headdim, state)."""
    batch, _, heads, headdim = x.shape
    states = chunk_states[:-2]
    chunks = states.numel() // max(1, batch * heads * headdim * state)
    return states.view(batch, chunks, heads * headdim, state)


def _added_up(
    parts: Tensor | list[Tensor] | None, like: Tensor | None
) -> Tensor | None:
    """Add up partial sums in a fixed order; a single one is the sum."""
    if like is None:
        return None
    single = isinstance(parts, list) or parts.shape[0] == 1
    total = parts[0] if single else parts.sum(0)
    return total.to(like.dtype)
