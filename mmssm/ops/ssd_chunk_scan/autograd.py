"""The SSD recurrence as a custom operator."""

import math
from typing import Any

import torch
from torch import Tensor

from mmssm.ops.custom_op import (
    forbid_second_derivative,
    like_inputs,
    or_zeros,
    wanted,
)
from mmssm.ops.dispatch import load_backend
from mmssm.ops.precision import working_dtype
from mmssm.ops.ssd_chunk_scan.chunks import kept_numbers, num_chunks


@torch.library.custom_op('mmssm::ssd_chunk_scan', mutates_args=())
def ssd_chunk_scan_op(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan on a backend; see `ssd_chunk_scan_fwd` of the `torch` backend.

    The states before the chunks are flat here: of an axis of chunks, a traced
    graph asks whether its size is 1, and then serves only such lengths. What
    `native` keeps of them is described in `kept_numbers`.
    """
    kernels = load_backend('ssd_chunk_scan', backend)
    y, final_states, chunk_states = kernels.ssd_chunk_scan_fwd(
        x,
        dt,
        A,
        B,
        C,
        D,
        z,
        dt_bias,
        seq_idx,
        initial_states,
        chunk_size,
        dt_softplus,
    )
    return y, final_states, chunk_states.flatten()


@ssd_chunk_scan_op.register_fake
def _(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    length = x.shape[1]
    shape = (x.shape[0], *x.shape[2:], B.shape[-1])
    if backend == 'native':
        kept = kept_numbers(length, chunk_size, math.prod(shape))
    elif backend == 'torch':
        kept = -(-length // chunk_size) * math.prod(shape)
    else:
        kept = num_chunks(length, chunk_size) * math.prod(shape)
    dtype = working_dtype(x.dtype)
    return (
        torch.empty_like(x),
        x.new_empty(shape, dtype=dtype),
        x.new_empty(kept, dtype=dtype),
    )


@torch.library.custom_op('mmssm::ssd_chunk_scan_backward', mutates_args=())
def ssd_chunk_scan_backward_op(
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
    backend: str,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:
    """Adjoint on a backend; absent gradients are empty tensors."""
    if backend != 'native':
        shape = (x.shape[0], -1, *x.shape[2:], B.shape[-1])
        chunk_states = chunk_states.view(shape)
    kernels = load_backend('ssd_chunk_scan', backend)
    gradients = kernels.ssd_chunk_scan_bwd(
        grad_y,
        grad_final_states,
        x,
        dt,
        A,
        B,
        C,
        D,
        z,
        dt_bias,
        seq_idx,
        initial_states,
        chunk_states,
        chunk_size,
        dt_softplus,
    )
    inputs = (x, dt, A, B, C, D, z, dt_bias, initial_states)
    return like_inputs(gradients, inputs, grad_y)


@ssd_chunk_scan_backward_op.register_fake
def _(
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
    backend: str,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:
    inputs = (x, dt, A, B, C, D, z, dt_bias, initial_states)
    return tuple(
        grad_y.new_empty(0) if t is None else torch.empty_like(t)
        for t in inputs
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, ctx.chunk_size, ctx.dt_softplus, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[2])
    # Else the backward pass is given zeros as large as the chunk states.
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any,
    grad_y: Tensor | None,
    grad_final_states: Tensor | None,
    _: Tensor | None,
) -> tuple[Tensor | None, ...]:
    # Read once: recomputed activations are given out once.
    saved = ctx.saved_tensors
    x, B = saved[0], saved[3]
    if grad_final_states is None:
        shape = (x.shape[0], *x.shape[2:], B.shape[-1])
        dtype = working_dtype(x.dtype)
        grad_final_states = x.new_zeros((), dtype=dtype).expand(shape)
    gradients = ssd_chunk_scan_backward_op(
        or_zeros(grad_y, x),
        grad_final_states,
        *saved,
        ctx.chunk_size,
        ctx.dt_softplus,
        ctx.backend,
    )
    *gradients, grad_initial_states = gradients
    # `seq_idx` lies in between and has none.
    gradients = (*gradients, None, grad_initial_states)
    return wanted(ctx.needs_input_grad, gradients)


ssd_chunk_scan_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(ssd_chunk_scan_backward_op, 'ssd_chunk_scan')
