"""Launchers of the Cayley rotation (`triton` backend)."""

import torch
import triton
from torch import Tensor

from mmssm.kernels.triton.cayley_rotate_bwd import (
    _cayley_rotate_bwd_kernel_factors,
    _cayley_rotate_bwd_kernel_state,
)
from mmssm.kernels.triton.cayley_rotate_dense import (
    _cayley_rotate_bwd_kernel_dense_factors,
    _cayley_rotate_kernel_dense_apply,
    _cayley_rotate_kernel_dense_inverse,
)
from mmssm.kernels.triton.cayley_rotate_fwd import (
    _cayley_rotate_fwd_kernel,
    _cayley_rotate_kernel_inverse,
)
from mmssm.kernels.triton.launch import device_guard
from mmssm.ops.cayley_rotate.sizes import LARGEST_SYSTEM

# Tiles are small: exact float32 products hold whole rows of their operands
# in registers, and several products are held at a time.
_BLOCK = 16


def cayley_rotate_fwd(
    state: Tensor, U: Tensor, V: Tensor, theta: Tensor
) -> Tensor:
    """Rotate a state.

    The system has ``2 rank`` unknowns, or ``state`` where that is not more.

    Args:
        state (Tensor): ``(batch, heads, headdim, state)``.
        U (Tensor): ``(batch, heads, state, rank)``.
        V (Tensor): ``(batch, heads, state, rank)``.
        theta (Tensor): ``(batch, heads, rank)``.

    Returns:
        Tensor: Like ``state``, contiguous, float32.

    Raises:
        RuntimeError: If the system has more than 64 unknowns.
    """
    _check_system(U)
    out = state.new_empty(state.shape, dtype=torch.float32)
    with device_guard(state):
        if _is_dense(U):
            inverse = _dense_inverse(U, V, theta)
            _dense_apply(state, inverse, None, out, transposed=False)
        else:
            inverse = _inverse(U, V, theta)
            _fwd(state, U, V, theta, inverse, out)
    return out


def cayley_rotate_bwd(
    grad: Tensor, state: Tensor, U: Tensor, V: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adjoint of `cayley_rotate_fwd`.

    Args:
        grad (Tensor): Gradient of the rotated state.
        state (Tensor): As in the forward pass, like the rest.
        U (Tensor): See above.
        V (Tensor): See above.
        theta (Tensor): See above.

    Returns:
        tuple[Tensor, Tensor, Tensor, Tensor]: Gradients of ``state``, ``U``,
        ``V`` and ``theta``.

    Raises:
        RuntimeError: As in the forward pass.
    """
    _check_system(U)
    with device_guard(state):
        if _is_dense(U):
            return _dense_bwd(grad, state, U, V, theta)
        return _bwd(grad, state, U, V, theta)


def _inverse(U: Tensor, V: Tensor, theta: Tensor) -> Tensor:
    batch, heads, d_state, rank = U.shape
    half = _padded(rank)
    inverse = U.new_empty(
        batch * heads, 2 * half, 2 * half, dtype=torch.float32
    )
    _cayley_rotate_kernel_inverse[(batch * heads,)](
        U,
        V,
        theta,
        inverse,
        *_strides(U, V, theta),
        heads,
        STATE=d_state,
        RANK=rank,
        HALF=half,
        BLOCK_N=_BLOCK,
    )
    return inverse


def _fwd(
    state: Tensor,
    U: Tensor,
    V: Tensor,
    theta: Tensor,
    inverse: Tensor,
    out: Tensor,
) -> None:
    batch, heads, headdim, d_state = state.shape
    rank = U.shape[-1]
    _cayley_rotate_fwd_kernel[batch * heads, triton.cdiv(headdim, _BLOCK)](
        state,
        U,
        V,
        theta,
        inverse,
        out,
        *_strides(state, U, V, theta),
        heads,
        HEADDIM=headdim,
        STATE=d_state,
        RANK=rank,
        HALF=_padded(rank),
        BLOCK_P=_BLOCK,
        BLOCK_N=_BLOCK,
    )


def _bwd(
    grad: Tensor, state: Tensor, U: Tensor, V: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inverse = _inverse(U, V, theta)
    batch, heads, headdim, d_state = state.shape
    rank = U.shape[-1]
    half, cells = _padded(rank), batch * heads
    tiles_p = triton.cdiv(headdim, _BLOCK)
    tiles_n = triton.cdiv(d_state, _BLOCK)
    constants = dict(
        HEADDIM=headdim,
        STATE=d_state,
        RANK=rank,
        HALF=half,
        BLOCK_P=_BLOCK,
        BLOCK_N=_BLOCK,
    )
    # What the second kernel needs of the first one, a row per row of state.
    solved, grad_inner = inverse.new_empty(2, cells, headdim, 2 * half)
    dstate, dU, dV = map(torch.empty_like, (state, U, V))
    _cayley_rotate_bwd_kernel_state[cells, tiles_p](
        grad,
        state,
        U,
        V,
        theta,
        inverse,
        dstate,
        solved,
        grad_inner,
        *_strides(grad, state, U, V, theta, dstate),
        heads,
        **constants,
    )
    dtheta = inverse.new_empty(tiles_n, *theta.shape)
    _cayley_rotate_bwd_kernel_factors[cells, tiles_n](
        grad,
        state,
        U,
        V,
        theta,
        solved,
        grad_inner,
        dU,
        dV,
        dtheta,
        *_strides(grad, state, U, V, theta, dU, dV),
        heads,
        **constants,
    )
    return dstate, dU, dV, dtheta.sum(0).to(theta.dtype)


def _dense_inverse(U: Tensor, V: Tensor, theta: Tensor) -> Tensor:
    batch, heads, d_state, rank = U.shape
    size = _padded(d_state)
    inverse = U.new_empty(batch * heads, size, size, dtype=torch.float32)
    _cayley_rotate_kernel_dense_inverse[(batch * heads,)](
        U,
        V,
        theta,
        inverse,
        *_strides(U, V, theta),
        heads,
        STATE=d_state,
        RANK=rank,
        SIZE=size,
        BLOCK_R=_BLOCK,
    )
    return inverse


def _dense_apply(
    rows: Tensor,
    inverse: Tensor,
    solved: Tensor | None,
    out: Tensor | None,
    transposed: bool,
) -> None:
    batch, heads, headdim, d_state = rows.shape
    tiles = triton.cdiv(headdim, _BLOCK) * triton.cdiv(d_state, _BLOCK)
    _cayley_rotate_kernel_dense_apply[batch * heads, tiles](
        rows,
        inverse,
        solved,
        out,
        *rows.stride(),
        *((0,) * 4 if out is None else out.stride()),
        heads,
        HEADDIM=headdim,
        STATE=d_state,
        SIZE=inverse.shape[-1],
        BLOCK_P=_BLOCK,
        BLOCK_N=_BLOCK,
        TRANSPOSED=transposed,
    )


def _dense_bwd(
    grad: Tensor, state: Tensor, U: Tensor, V: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inverse = _dense_inverse(U, V, theta)
    batch, heads, headdim, d_state = state.shape
    solved, grad_inner = inverse.new_empty(2, *state.shape)
    dstate, dU, dV = map(torch.empty_like, (state, U, V))
    _dense_apply(state, inverse, solved, None, transposed=False)
    _dense_apply(grad, inverse, grad_inner, dstate, transposed=True)
    rank = U.shape[-1]
    tiles_n = triton.cdiv(d_state, _BLOCK)
    tiles_r = triton.cdiv(rank, _BLOCK)
    dtheta = inverse.new_empty(tiles_n, *theta.shape)
    _cayley_rotate_bwd_kernel_dense_factors[batch * heads, tiles_n, tiles_r](
        U,
        V,
        theta,
        solved,
        grad_inner,
        dU,
        dV,
        dtheta,
        *_strides(U, V, theta, dU, dV),
        heads,
        HEADDIM=headdim,
        STATE=d_state,
        RANK=rank,
        BLOCK_P=_BLOCK,
        BLOCK_N=_BLOCK,
        BLOCK_R=_BLOCK,
    )
    return dstate, dU, dV, dtheta.sum(0).to(theta.dtype)


def _check_system(U: Tensor) -> None:
    d_state, rank = U.shape[-2:]
    unknowns = min(2 * rank, d_state)
    if unknowns > LARGEST_SYSTEM:
        raise RuntimeError(
            f'the Triton kernel of cayley_rotate solves for at most '
            f'{LARGEST_SYSTEM} unknowns; rank {rank} and state {d_state} '
            f"need {unknowns}. Use backend='torch'"
        )


def _is_dense(U: Tensor) -> bool:
    """Whether the dense system is no larger; it is better conditioned."""
    d_state, rank = U.shape[-2:]
    return 2 * rank >= d_state


def _padded(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()]
