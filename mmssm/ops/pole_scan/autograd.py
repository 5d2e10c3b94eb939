"""The pole scan as a custom operator: torch, native and Triton kernels."""

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


@torch.library.custom_op('mmssm::pole_scan', mutates_args=())
def pole_scan_op(
    eta: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan on a backend; see `pole_scan_fwd` of the `torch` backend."""
    kernels = load_backend('pole_scan', backend)
    return kernels.pole_scan_fwd(eta, q, x, D, z, initial_history, reverse)


@pole_scan_op.register_fake
def _(
    eta: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = working_dtype(eta.dtype)
    batch, _, channels = eta.shape
    history = eta.new_empty(batch, q.shape[-1], channels, dtype=dtype)
    if D is None and z is None and eta.dtype == dtype:
        y = eta.new_empty(0)
    else:
        y = torch.empty_like(eta, dtype=dtype)
    return torch.empty_like(eta), history, y


@torch.library.custom_op('mmssm::pole_scan_backward', mutates_args=())
def pole_scan_backward_op(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adjoint on a backend; absent gradients are empty tensors."""
    kernels = load_backend('pole_scan', backend)
    gradients = kernels.pole_scan_bwd(
        grad_out,
        grad_final_history,
        q,
        x,
        D,
        z,
        initial_history,
        y,
        eta_dtype,
        reverse,
    )
    # y has the layout of eta.
    return like_inputs(gradients, (y, q, x, D, z, initial_history), grad_out)


@pole_scan_backward_op.register_fake
def _(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    optional = (x, D, z, initial_history)
    return (
        torch.empty_like(y, dtype=eta_dtype),
        torch.empty_like(q),
        *(
            grad_out.new_empty(0) if t is None else torch.empty_like(t)
            for t in optional
        ),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    eta, q, x, D, z, initial_history, reverse, backend = inputs
    out, _, y = output
    ctx.set_materialize_grads(False)
    is_out = D is None and z is None and y.dtype == eta.dtype
    ctx.save_for_backward(q, x, D, z, initial_history, out if is_out else y)
    ctx.eta_dtype, ctx.reverse, ctx.backend = eta.dtype, reverse, backend


def _backward(
    ctx: Any, grad_out: Tensor | None, grad_history: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    q, x, D, z, initial_history, y = ctx.saved_tensors
    if grad_history is None:
        shape = (y.shape[0], q.shape[-1], y.shape[-1])
        grad_history = y.new_zeros(shape)
    gradients = pole_scan_backward_op(
        or_zeros(grad_out, y).to(ctx.eta_dtype),
        grad_history,
        q,
        x,
        D,
        z,
        initial_history,
        y,
        ctx.eta_dtype,
        ctx.reverse,
        ctx.backend,
    )
    return wanted(ctx.needs_input_grad, gradients)


pole_scan_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(pole_scan_backward_op, 'pole_scan')
