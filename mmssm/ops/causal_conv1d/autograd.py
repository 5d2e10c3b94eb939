"""The causal convolution as a custom operator."""

from typing import Any

import torch
from torch import Tensor

from mmssm.ops.custom_op import forbid_second_derivative, like_inputs, wanted
from mmssm.ops.dispatch import load_backend


@torch.library.custom_op('mmssm::causal_conv1d', mutates_args=())
def causal_conv1d_op(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
    backend: str,
) -> Tensor:
    """Convolve on a backend; see `causal_conv1d_fwd` of `torch`."""
    kernels = load_backend('causal_conv1d', backend)
    return kernels.causal_conv1d_fwd(
        x, weight, bias, initial_states, silu, reverse
    )


@causal_conv1d_op.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
    backend: str,
) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op('mmssm::causal_conv1d_backward', mutates_args=())
def causal_conv1d_backward_op(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adjoint on a backend; absent gradients are empty tensors."""
    kernels = load_backend('causal_conv1d', backend)
    gradients = kernels.causal_conv1d_bwd(
        grad_y, x, weight, bias, initial_states, silu, reverse
    )
    return like_inputs(gradients, (x, weight, bias, initial_states), x)


@causal_conv1d_backward_op.register_fake
def _(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(
        x.new_empty(0) if t is None else torch.empty_like(t)
        for t in (x, weight, bias, initial_states)
    )


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.silu, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    gradients = causal_conv1d_backward_op(
        grad_y, *ctx.saved_tensors, ctx.silu, ctx.reverse, ctx.backend
    )
    return wanted(ctx.needs_input_grad, gradients)


causal_conv1d_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(causal_conv1d_backward_op, 'causal_conv1d')
