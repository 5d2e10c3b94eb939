"""Launchers of the Cayley rotation (`triton` backend)."""

from typing import Any

import torch
import triton
from torch import Tensor

from mmssm.kernels.triton.cayley_rotate_bwd import (
    _cayley_rotate_bwd_kernel_factors,
    _cayley_rotate_bwd_kernel_state,
)
from mmssm.kernels.triton.cayley_rotate_bwd_dense import (
    _cayley_rotate_bwd_kernel_dense_factors,
    _cayley_rotate_bwd_kernel_dense_state,
)
from mmssm.kernels.triton.cayley_rotate_fwd import (
    _cayley_rotate_fwd_kernel,
    _cayley_rotate_fwd_kernel_dense,
)
from mmssm.kernels.triton.launch import device_guard

# Unknowns of the linear system, which has to fit into registers.
_LARGEST_SYSTEM = 64
_LARGEST_BLOCK = 32
# Exact float32 products hold whole rows of their operands in registers.
_OPTIONS = {'num_warps': 8, 'num_stages': 1}


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
    constants = _constants(state, U)
    kernel = _cayley_rotate_fwd_kernel
    if _is_dense(constants):
        kernel = _cayley_rotate_fwd_kernel_dense
    batch, heads, headdim, _ = state.shape
    out = state.new_empty(state.shape, dtype=torch.float32)
    grid = batch * heads, triton.cdiv(headdim, constants['BLOCK_P'])
    with device_guard(state):
        kernel[grid](
            state,
            U,
            V,
            theta,
            out,
            *_strides(state, U, V, theta),
            heads,
            **constants,
            **_OPTIONS,
        )
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
    constants = _constants(state, U)
    dense = _is_dense(constants)
    batch, heads, headdim, d_state = state.shape
    cells = batch * heads
    size = constants['SIZE'] if dense else 2 * constants['HALF']
    # Per row of the state: the solution, and the gradient of its right side.
    solved, grad_inner = state.new_empty(
        2, cells, headdim, size, dtype=torch.float32
    )
    dstate, dU, dV = map(torch.empty_like, (state, U, V))
    tiles_n = 1 if dense else triton.cdiv(d_state, constants['BLOCK_N'])
    dtheta = state.new_empty(tiles_n, *theta.shape, dtype=torch.float32)
    with device_guard(state):
        if dense:
            on_state = _cayley_rotate_bwd_kernel_dense_state
        else:
            on_state = _cayley_rotate_bwd_kernel_state
        on_state[cells, triton.cdiv(headdim, constants['BLOCK_P'])](
            grad,
            state,
            U,
            V,
            theta,
            dstate,
            solved,
            grad_inner,
            *_strides(grad, state, U, V, theta, dstate),
            heads,
            **constants,
            **_OPTIONS,
        )
        factors = (U, V, theta, solved, grad_inner, dU, dV, dtheta)
        if dense:
            tiles_r = triton.cdiv(U.shape[-1], constants['BLOCK_R'])
            _cayley_rotate_bwd_kernel_dense_factors[cells, tiles_r](
                *factors,
                *_strides(U, V, theta, dU, dV),
                heads,
                **constants,
                **_OPTIONS,
            )
        else:
            _cayley_rotate_bwd_kernel_factors[cells, tiles_n](
                grad,
                state,
                *factors,
                *_strides(grad, state, U, V, theta, dU, dV),
                heads,
                **constants,
                **_OPTIONS,
            )
    return dstate, dU, dV, dtheta.sum(0).to(theta.dtype)


def _constants(state: Tensor, U: Tensor) -> dict[str, Any]:
    headdim, d_state = state.shape[-2:]
    rank = U.shape[-1]
    unknowns = min(2 * rank, d_state)
    if unknowns > _LARGEST_SYSTEM:
        raise RuntimeError(
            f'the Triton kernel of cayley_rotate solves for at most '
            f'{_LARGEST_SYSTEM} unknowns; rank {rank} and state {d_state} '
            f"need {unknowns}. Use backend='torch'"
        )
    constants = {
        'HEADDIM': headdim,
        'STATE': d_state,
        'BLOCK_P': _block(headdim),
    }
    if 2 * rank >= d_state:
        # The dense system is no larger, and better conditioned.
        return constants | {
            'RANK': rank,
            'SIZE': _padded(d_state),
            'BLOCK_R': _block(rank),
        }
    return constants | {
        'USED': rank,
        'HALF': _padded(rank),
        'BLOCK_N': _block(d_state),
    }


def _is_dense(constants: dict[str, Any]) -> bool:
    return 'SIZE' in constants


def _padded(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def _block(size: int) -> int:
    return min(_LARGEST_BLOCK, _padded(size))


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()]
