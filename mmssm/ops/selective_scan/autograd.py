"""The selective scan as a custom operator."""

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
from mmssm.ops.precision import autocast_off, working_dtype
from mmssm.ops.selective_scan.checkpoints import num_checkpoints


@torch.library.custom_op('mmssm::selective_scan', mutates_args=())
def selective_scan_op(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan on a backend; see `selective_scan_fwd` of `torch`.

    The checkpoints are flat here: of an axis of chunks, a traced graph asks
    whether its size is 1, and then serves only such lengths.
    """
    kernels = load_backend('selective_scan', backend)
    y, last_state, checkpoints = kernels.selective_scan_fwd(
        u,
        delta,
        A,
        B,
        C,
        D,
        z,
        delta_bias,
        initial_state,
        delta_softplus,
        reverse,
    )
    return y, last_state, checkpoints.flatten()


@selective_scan_op.register_fake
def _(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, dim, length = u.shape
    dtype = working_dtype(u.dtype)
    state = u.new_empty(batch, dim, A.shape[1], dtype=dtype)
    kept = num_checkpoints(length) * batch * dim * A.shape[1]
    return torch.empty_like(u), state, u.new_empty(kept, dtype=dtype)


@torch.library.custom_op('mmssm::selective_scan_backward', mutates_args=())
def selective_scan_backward_op(
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
    backend: str,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:
    """Adjoint on a backend; absent gradients are empty tensors."""
    kernels = load_backend('selective_scan', backend)
    # The caller may differentiate under autocast.
    with autocast_off(u):
        gradients = kernels.selective_scan_bwd(
            grad_y,
            grad_last_state,
            u,
            delta,
            A,
            B,
            C,
            D,
            z,
            delta_bias,
            checkpoints.view(u.shape[0], -1, *A.shape),
            delta_softplus,
            reverse,
        )
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    *gradients, grad_state = gradients
    return (*like_inputs(gradients, inputs, u), grad_state)


@selective_scan_backward_op.register_fake
def _(
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
    backend: str,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    return (
        *(
            u.new_empty(0) if t is None else torch.empty_like(t)
            for t in inputs
        ),
        checkpoints.new_empty(u.shape[0], *A.shape),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.set_materialize_grads(False)
    # The initial state is the first checkpoint.
    *tensors, _, ctx.delta_softplus, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[2])


def _backward(
    ctx: Any, grad_y: Tensor | None, grad_last_state: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    # Read once: recomputed activations are given out once.
    saved = ctx.saved_tensors
    u, _, A, *_, checkpoints = saved
    if grad_last_state is None:
        shape = (*u.shape[:2], A.shape[1])
        grad_last_state = checkpoints.new_zeros(shape)
    gradients = selective_scan_backward_op(
        or_zeros(grad_y, u),
        grad_last_state,
        *saved,
        ctx.delta_softplus,
        ctx.reverse,
        ctx.backend,
    )
    return wanted(ctx.needs_input_grad, gradients)


selective_scan_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(selective_scan_backward_op, 'selective_scan')
