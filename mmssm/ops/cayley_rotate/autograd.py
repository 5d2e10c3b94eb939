"""The Cayley rotation as a custom operator: Triton kernels."""

from typing import Any

import torch
from torch import Tensor

from mmssm.ops.custom_op import forbid_second_derivative, wanted
from mmssm.ops.dispatch import load_backend
from mmssm.ops.precision import working_dtype


@torch.library.custom_op('mmssm::cayley_rotate', mutates_args=())
def cayley_rotate_op(
    state: Tensor, U: Tensor, V: Tensor, theta: Tensor, backend: str
) -> Tensor:
    """Rotate on a backend; contiguous, in the working dtype."""
    kernels = load_backend('cayley_rotate', backend)
    return kernels.cayley_rotate_fwd(state, U, V, theta)


@cayley_rotate_op.register_fake
def _(
    state: Tensor, U: Tensor, V: Tensor, theta: Tensor, backend: str
) -> Tensor:
    return state.new_empty(state.shape, dtype=working_dtype(state.dtype))


@torch.library.custom_op('mmssm::cayley_rotate_backward', mutates_args=())
def cayley_rotate_backward_op(
    grad: Tensor,
    state: Tensor,
    U: Tensor,
    V: Tensor,
    theta: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adjoint on a backend."""
    kernels = load_backend('cayley_rotate', backend)
    return kernels.cayley_rotate_bwd(grad, state, U, V, theta)


@cayley_rotate_backward_op.register_fake
def _(
    grad: Tensor,
    state: Tensor,
    U: Tensor,
    V: Tensor,
    theta: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(torch.empty_like(t) for t in (state, U, V, theta))


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.backend = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gradients = cayley_rotate_backward_op(
        grad, *ctx.saved_tensors, ctx.backend
    )
    return wanted(ctx.needs_input_grad, gradients)


cayley_rotate_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(cayley_rotate_backward_op, 'cayley_rotate')
