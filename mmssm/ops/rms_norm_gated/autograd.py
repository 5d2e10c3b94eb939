"""The gated RMS normalisation as a custom operator: Triton kernels."""

from typing import Any

import torch
from torch import Tensor

from mmssm.ops.custom_op import forbid_second_derivative, present, wanted
from mmssm.ops.dispatch import load_backend
from mmssm.ops.precision import working_dtype


@torch.library.custom_op('mmssm::rms_norm_gated', mutates_args=())
def rms_norm_gated_op(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Normalise on a backend.

    Returns:
        tuple[Tensor, Tensor]: Output like ``x``; one over the root mean
        square of each group, ``(rows, groups)`` in the working dtype, with
        the axes before the last flattened to ``rows``.
    """
    kernels = load_backend('rms_norm_gated', backend)
    return kernels.rms_norm_gated_fwd(
        x, weight, bias, z, eps, group_size, norm_before_gate
    )


@rms_norm_gated_op.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    dim = x.shape[-1]
    shape = (x.numel() // dim, dim // group_size)
    rstd = x.new_empty(shape, dtype=working_dtype(x.dtype))
    return torch.empty_like(x), rstd


@torch.library.custom_op('mmssm::rms_norm_gated_backward', mutates_args=())
def rms_norm_gated_backward_op(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    rstd: Tensor,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adjoint on a backend; absent gradients are empty tensors."""
    kernels = load_backend('rms_norm_gated', backend)
    gradients = kernels.rms_norm_gated_bwd(
        grad_y, x, weight, bias, z, rstd, eps, group_size, norm_before_gate
    )
    return tuple(present(gradient, grad_y) for gradient in gradients)


@rms_norm_gated_backward_op.register_fake
def _(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    rstd: Tensor,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(
        grad_y.new_empty(0) if t is None else torch.empty_like(t)
        for t in (x, weight, bias, z)
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, weight, bias, z, *ctx.options = inputs
    ctx.save_for_backward(x, weight, bias, z, output[1])


def _backward(ctx: Any, grad_y: Tensor, _: Tensor) -> tuple:
    *inputs, rstd = ctx.saved_tensors
    gradients = rms_norm_gated_backward_op(grad_y, *inputs, rstd, *ctx.options)
    return wanted(ctx.needs_input_grad, gradients)


rms_norm_gated_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(rms_norm_gated_backward_op, 'rms_norm_gated')
