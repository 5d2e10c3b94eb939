"""Launchers of the selective scan (`triton` backend)."""

import torch
import triton
from torch import Tensor

from mmssm.kernels.triton.launch import device_guard
from mmssm.kernels.triton.selective_scan_bwd import _selective_scan_bwd_kernel
from mmssm.kernels.triton.selective_scan_fwd import _selective_scan_fwd_kernel
from mmssm.kernels.triton.selective_scan_parts import TOKENS
from mmssm.kernels.triton.selective_scan_tiling import (
    backward_tiling,
    forward_tiling,
)
from mmssm.ops.selective_scan.checkpoints import (
    CHECKPOINT_EVERY,
    num_checkpoints,
)
from mmssm.ops.selective_scan.sizes import LARGEST_STATE


def selective_scan_fwd(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan all tokens; everything but loads and stores is float32.

    Args:
        u (Tensor): ``(batch, dim, length)``, any strides, float32, float16
            or bfloat16, like the other tensors.
        delta (Tensor): Like ``u``.
        A (Tensor): ``(dim, state)``.
        B (Tensor): ``(batch, groups, state, length)``.
        C (Tensor): ``(batch, groups, state, length)``.
        D (Tensor, optional): ``(dim,)``.
        z (Tensor, optional): Like ``u``.
        delta_bias (Tensor, optional): ``(dim,)``.
        initial_state (Tensor, optional): ``(batch, dim, state)``.
        delta_softplus (bool): Whether ``delta`` goes through softplus.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Output like ``u``; final state
        ``(batch, dim, state)`` and checkpoints
        ``(batch, chunks, dim, state)`` in float32.

    Raises:
        RuntimeError: If the state or one entry of the batch is too large
            for the kernel.
    """
    batch, dim, length = u.shape
    groups, state = B.shape[1:3]
    y = torch.empty_like(u)
    last_state = u.new_empty(batch, dim, state, dtype=torch.float32)
    checkpoints = u.new_empty(
        (batch, num_checkpoints(length), dim, state), dtype=torch.float32
    )
    _check_size(state, (u, delta, z, y), (B, C))
    block, tiling = forward_tiling(batch, dim, groups, state)
    grid = (batch * groups * triton.cdiv(dim // groups, block),)
    with device_guard(u):
        _selective_scan_fwd_kernel[grid](
            u,
            delta,
            A.contiguous(),
            B,
            C,
            _contiguous(D),
            z,
            _contiguous(delta_bias),
            _contiguous(initial_state),
            y,
            last_state,
            checkpoints,
            groups,
            dim // groups,
            length,
            *u.stride(),
            *delta.stride(),
            *B.stride(),
            *C.stride(),
            *_strides(z),
            *y.stride(),
            SOFTPLUS=delta_softplus,
            REVERSE=reverse,
            **tiling,
        )
    return y, last_state, checkpoints


def selective_scan_bwd(
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
) -> tuple[Tensor | None, ...]:
    """Compute all gradients from the checkpoints of the forward pass.

    Sums over channels and over the batch are partial sums of the programs,
    added here, so that the result does not depend on their order.

    Args:
        grad_y (Tensor): Gradient of the output, any strides.
        grad_last_state (Tensor): Gradient of the final state.
        u (Tensor): As in `selective_scan_fwd`, and so the following.
        delta (Tensor): Step sizes.
        A (Tensor): Rates.
        B (Tensor): Into the state.
        C (Tensor): Out of the state.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        delta_bias (Tensor, optional): Bias of the step sizes.
        checkpoints (Tensor): From `selective_scan_fwd`.
        delta_softplus (bool): As in the forward pass.
        reverse (bool): As in the forward pass.

    Returns:
        tuple[Tensor | None, ...]: Gradients of ``u``, ``delta``, ``A``,
        ``B``, ``C``, ``D``, ``z``, ``delta_bias`` in their dtypes, and of
        the initial state in float32. None for absent inputs.

    Raises:
        RuntimeError: If the state or one entry of the batch is too large
            for the kernel.
    """
    batch, dim, length = u.shape
    groups, state = B.shape[1:3]
    block, tiling = backward_tiling(batch, dim, groups, state)
    blocks = triton.cdiv(dim // groups, block)
    programs = batch * groups * blocks
    du, ddelta = torch.empty_like(u), torch.empty_like(delta)
    dz = None if z is None else torch.empty_like(z)
    _check_size(state, (u, delta, z, grad_y, du, ddelta, dz), (B, C))
    float32 = dict(dtype=torch.float32, device=u.device)
    scratch = torch.empty(
        (programs, CHECKPOINT_EVERY // TOKENS.value, tiling['N'], block),
        **float32,
    )
    dA = torch.empty((batch, dim, state), **float32)
    dB = torch.empty((blocks, batch, groups, state, length), **float32)
    dC = torch.empty_like(dB)
    dD = None if D is None else torch.empty((batch, dim), **float32)
    dbias = None
    if delta_bias is not None:
        dbias = torch.empty((batch, dim), **float32)
    dinitial_state = torch.empty((batch, dim, state), **float32)
    with device_guard(u):
        _selective_scan_bwd_kernel[(programs,)](
            grad_y,
            grad_last_state.contiguous(),
            u,
            delta,
            A.contiguous(),
            B,
            C,
            _contiguous(D),
            z,
            _contiguous(delta_bias),
            checkpoints,
            scratch,
            du,
            ddelta,
            dA,
            dB,
            dC,
            dD,
            dz,
            dbias,
            dinitial_state,
            groups,
            dim // groups,
            length,
            *grad_y.stride(),
            *u.stride(),
            *delta.stride(),
            *B.stride(),
            *C.stride(),
            *_strides(z),
            *du.stride(),
            *ddelta.stride(),
            *_strides(dz),
            SOFTPLUS=delta_softplus,
            REVERSE=reverse,
            **tiling,
        )
    return (
        du,
        ddelta,
        _add_up(dA, A),
        _add_up(dB, B),
        _add_up(dC, C),
        _add_up(dD, D),
        dz,
        _add_up(dbias, delta_bias),
        dinitial_state,
    )


def _check_size(
    state: int,
    sequences: tuple[Tensor | None, ...],
    projections: tuple[Tensor, ...],
) -> None:
    """Refuse what registers or offsets of 32 bits cannot hold."""
    if state > LARGEST_STATE:
        raise RuntimeError(
            f'the triton kernel of selective_scan holds at most '
            f'{LARGEST_STATE} states per channel, not {state}; use '
            f"backend='torch'"
        )
    for tensor in (*sequences, *projections):
        if tensor is None:
            continue
        rows, stride = tensor.shape[-2], tensor.stride(-2)
        span = rows * stride + TOKENS.value * tensor.stride(-1)
        if span >= 2**31:
            raise RuntimeError(
                f'one entry of the batch spans {span} elements; the triton '
                f'kernel of selective_scan can address less than 2**31. Use '
                f"shorter sequences or backend='torch'"
            )


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _strides(tensor: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if tensor is None else tensor.stride()


def _add_up(partial: Tensor | None, like: Tensor | None) -> Tensor | None:
    """Sum over the first axis, in the dtype and layout of an input."""
    if partial is None:
        return None
    return torch.empty_like(like).copy_(partial.sum(0))
