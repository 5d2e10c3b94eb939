"""The denominator as a custom operator: native and Triton kernels."""

from typing import Any

import torch
from torch import Tensor

from mmssm.ops.custom_op import forbid_second_derivative, like_inputs, wanted
from mmssm.ops.dispatch import load_backend
from mmssm.ops.precision import working_dtype


@torch.library.custom_op('mmssm::pole_denominator', mutates_args=())
def pole_denominator_op(
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    eps: float,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
    backend: str,
) -> Tensor:
    """Compute the coefficients on a backend."""
    kernels = load_backend('pole_denominator', backend)
    return kernels.pole_denominator_fwd(
        rho_hat,
        theta_hat,
        real_rho_hat,
        sign_hat,
        rho_mod,
        theta_mod,
        eps,
        delta_min,
        delta_0,
        lambda_theta,
    )


@pole_denominator_op.register_fake
def _(
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    eps: float,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
    backend: str,
) -> Tensor:
    modulation = theta_mod if rho_mod is None else rho_mod
    tokens = (1, 1) if modulation is None else modulation.shape[:2]
    order = real_rho_hat.shape[1] + 2 * rho_hat.shape[1]
    return rho_hat.new_empty(
        *tokens,
        rho_hat.shape[0],
        order,
        dtype=working_dtype(rho_hat.dtype),
    )


@torch.library.custom_op('mmssm::pole_denominator_backward', mutates_args=())
def pole_denominator_backward_op(
    grad_q: Tensor,
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    eps: float,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adjoint on a backend; absent gradients are empty tensors."""
    kernels = load_backend('pole_denominator', backend)
    gradients = kernels.pole_denominator_bwd(
        grad_q,
        rho_hat,
        theta_hat,
        real_rho_hat,
        sign_hat,
        rho_mod,
        theta_mod,
        eps,
        delta_min,
        delta_0,
        lambda_theta,
    )
    inputs = (rho_hat, theta_hat, real_rho_hat, sign_hat, rho_mod, theta_mod)
    return like_inputs(gradients, inputs, grad_q)


@pole_denominator_backward_op.register_fake
def _(
    grad_q: Tensor,
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    eps: float,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = (rho_hat, theta_hat, real_rho_hat, sign_hat, rho_mod, theta_mod)
    return tuple(
        grad_q.new_empty(0) if t is None else torch.empty_like(t)
        for t in inputs
    )


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _backward(ctx: Any, grad_q: Tensor) -> tuple[Tensor | None, ...]:
    gradients = pole_denominator_backward_op(
        grad_q, *ctx.saved_tensors, *ctx.options
    )
    return wanted(ctx.needs_input_grad, gradients)


pole_denominator_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(pole_denominator_backward_op, 'pole_denominator')
