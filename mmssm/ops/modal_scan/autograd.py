"""The modal scan as a custom operator."""

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
    """Scan on a backend; see `modal_scan_fwd` of `torch`.

    The checkpoints are flat here: of an axis of chunks, a traced graph asks
    whether its size is 1, and then serves only such lengths.
    """
    kernels = load_backend('modal_scan', backend)
    out, final_state, checkpoints = kernels.modal_scan_fwd(
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
    return out, final_state, checkpoints.flatten()


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
    kept = chunks * batch * modes * channels
    return torch.empty_like(eta), state, eta.new_empty(kept, dtype=dtype)


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
    batch, _, channels = eta.shape
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
        checkpoints.view(batch, -1, residues.shape[1], channels),
        reverse,
    )
    inputs = (eta, real, pair_re, pair_im, residues, x, D, z)
    *gradients, grad_state = gradients
    return (*like_inputs(gradients, inputs, eta), grad_state)


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
        checkpoints.new_empty(eta.shape[0], residues.shape[1], eta.shape[2]),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.set_materialize_grads(False)
    # The initial state is the first checkpoint.
    *tensors, _, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[2])


def _backward(
    ctx: Any, grad_out: Tensor | None, grad_final_state: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    # Read once: recomputed activations are given out once.
    saved = ctx.saved_tensors
    eta, *_, checkpoints = saved
    if grad_final_state is None:
        modes = saved[4].shape[1]
        shape = (eta.shape[0], modes, eta.shape[2])
        grad_final_state = checkpoints.new_zeros(shape)
    gradients = modal_scan_backward_op(
        or_zeros(grad_out, eta),
        grad_final_state,
        *saved,
        ctx.reverse,
        ctx.backend,
    )
    return wanted(ctx.needs_input_grad, gradients)


modal_scan_op.register_autograd(_backward, setup_context=_setup_context)
forbid_second_derivative(modal_scan_backward_op, 'modal_scan')
