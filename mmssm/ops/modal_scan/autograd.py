"""The modal scan as a custom operator."""

from typing import Any

import torch
from torch import Tensor

from mmssm.ops.custom_op import forbid_second_derivative, present, wanted
from mmssm.ops.dispatch import load_backend
from mmssm.ops.modal_scan.checkpoints import CHECKPOINT_EVERY
from mmssm.ops.precision import working_dtype


@torch.library.custom_op('mmssm::modal_scan', mutates_args=())
def modal_scan_op(
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan on a backend; see `modal_scan_fwd` of `torch`."""
    kernels = load_backend('modal_scan', backend)
    return kernels.modal_scan_fwd(
        eta,
        real,
        pair_re,
        pair_im,
        residues,
        x,
        D,
        z,
        initial_state,
        reverse,
    )


@modal_scan_op.register_fake
def _(
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = working_dtype(eta.dtype)
    batch, length, channels = eta.shape
    modes = residues.shape[1]
    chunks = -(-length // CHECKPOINT_EVERY)
    state = eta.new_empty(batch, modes, channels, dtype=dtype)
    shape = (batch, chunks, modes, channels)
    return torch.empty_like(eta), state, eta.new_empty(shape, dtype=dtype)


@torch.library.custom_op('mmssm::modal_scan_backward', mutates_args=())
def modal_scan_backward_op(
    grad_out: Tensor,
    grad_final_state: Tensor,
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    checkpoints: Tensor,
    reverse: bool,
    backend: str,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:
    """Adjoint on a backend; absent gradients are empty tensors."""
    kernels = load_backend('modal_scan', backend)
    gradients = kernels.modal_scan_bwd(
        grad_out,
        grad_final_state,
        eta,
        real,
        pair_re,
        pair_im,
        residues,
        x,
        D,
        z,
        checkpoints,
        reverse,
    )
    return tuple(present(gradient, eta) for gradient in gradients)


@modal_scan_backward_op.register_fake
def _(
    grad_out: Tensor,
    grad_final_state: Tensor,
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    checkpoints: Tensor,
    reverse: bool,
    backend: str,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:
    inputs = (eta, real, pair_re, pair_im, residues, x, D, z)
    return (
        *(
            eta.new_empty(0) if t is None else torch.empty_like(t)
            for t in inputs
        ),
        checkpoints.new_empty(checkpoints.shape[0], *checkpoints.shape[2:]),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    # The initial state is the first checkpoint.
    *tensors, _, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[2])


def _backward(
    ctx: Any, grad_out: Tensor, grad_final_state: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    gradients = modal_scan_backward_op(
        grad_out,
        grad_final_state,
        *ctx.saved_tensors,
        ctx.reverse,
        ctx.backend,
    )
    return wanted(ctx.needs_input_grad, gradients)


modal_scan_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(modal_scan_backward_op, 'modal_scan')
