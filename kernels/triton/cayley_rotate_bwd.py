"""Backward kernels of the Cayley rotation by Z = I + left E right^T.

The forward pass is inner = state left, solved = inner E, out = state + solved
right^T. So grad_inner = grad_solved E^T, and the gradient of the inverted
matrix is -solved^T grad_inner. The first kernel writes ``solved`` and
``grad_inner``, (batch heads, headdim, 2 HALF), and the second one reads them.

The constants are explained in ``cayley_rotate_parts``.
"""

import triton
import triton.language as tl

from mmssm.kernels.triton.cayley_rotate_fwd import (
    multiply,
    project,
    store_sum,
)
from mmssm.kernels.triton.cayley_rotate_parts import (
    TUNING_KEY,
    add_dot,
    load_angle,
    load_tile,
    locate,
    store_tile,
)
from mmssm.kernels.triton.launch import autotune, over_warps


# With 4 warps it spills.
@autotune(over_warps(8, stages=1), key=TUNING_KEY)
@triton.jit
def _cayley_rotate_bwd_kernel_state(
    grad, state, U, V, theta, inverse, dstate, solved, grad_inner,
    stride_grad_batch, stride_grad_head, stride_grad_p, stride_grad_n,
    stride_state_batch, stride_state_head, stride_state_p, stride_state_n,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    stride_dstate_batch, stride_dstate_head, stride_dstate_p, stride_dstate_n,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr,
    HALF: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradient of the state: grad + grad right E^T left^T."""
    batch, head = locate(heads)
    cell = batch * heads + head
    grad += batch * stride_grad_batch + head * stride_grad_head
    state += batch * stride_state_batch + head * stride_state_head
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    dstate += batch * stride_dstate_batch + head * stride_dstate_head
    size: tl.constexpr = 2 * HALF
    inverse += cell * size * size
    solved += cell * HEADDIM * size
    grad_inner += cell * HEADDIM * size
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    plane = tl.arange(0, HALF)
    angle = load_angle(theta, plane, stride_theta_r, RANK)[None, :]
    on_u, on_v = project(
        state, U, V, p, plane,
        stride_state_p, stride_state_n, stride_U_n, stride_U_r, stride_V_n, stride_V_r,
        HEADDIM, STATE, RANK, BLOCK_N,
    )  # fmt: skip
    on_v, on_u = multiply(
        on_u * angle, -on_v * angle, inverse, plane, size, 1, HALF
    )
    store_tile(solved, on_v, p, plane, size, 1, HEADDIM, HALF)
    store_tile(solved + HALF, on_u, p, plane, size, 1, HEADDIM, HALF)
    on_v, on_u = project(
        grad, V, U, p, plane,
        stride_grad_p, stride_grad_n, stride_V_n, stride_V_r, stride_U_n, stride_U_r,
        HEADDIM, STATE, RANK, BLOCK_N,
    )  # fmt: skip
    on_u, on_v = multiply(on_v, on_u, inverse, plane, 1, size, HALF)
    store_tile(grad_inner, on_u, p, plane, size, 1, HEADDIM, HALF)
    store_tile(grad_inner + HALF, on_v, p, plane, size, 1, HEADDIM, HALF)
    store_sum(
        dstate, grad, on_u * angle, -on_v * angle, U, V, p, plane,
        stride_dstate_p, stride_dstate_n, stride_grad_p, stride_grad_n,
        stride_U_n, stride_U_r, stride_V_n, stride_V_r,
        HEADDIM, STATE, RANK, BLOCK_N,
    )  # fmt: skip


@autotune(over_warps(8, 4, stages=1), key=TUNING_KEY)
@triton.jit
def _cayley_rotate_bwd_kernel_factors(
    grad, state, U, V, theta, solved, grad_inner, dU, dV, dtheta,
    stride_grad_batch, stride_grad_head, stride_grad_p, stride_grad_n,
    stride_state_batch, stride_state_head, stride_state_p, stride_state_n,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    stride_dU_batch, stride_dU_head, stride_dU_n, stride_dU_r,
    stride_dV_batch, stride_dV_head, stride_dV_n, stride_dV_r,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr,
    HALF: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of U, V and theta for some rows of U and V.

    ``dtheta`` (tiles over state, batch, heads, RANK) holds partial sums.
    Names with two digits are blocks of the gradient of the inverted matrix.
    """
    batch, head = locate(heads)
    cell = batch * heads + head
    grad += batch * stride_grad_batch + head * stride_grad_head
    state += batch * stride_state_batch + head * stride_state_head
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    plane = tl.arange(0, HALF)
    size: tl.constexpr = 2 * HALF
    solved += cell * HEADDIM * size
    grad_inner += cell * HEADDIM * size
    core = tl.zeros((HALF, HALF), tl.float32)
    core00, core01, core10, core11 = core, core, core, core
    factor = tl.zeros((BLOCK_N, HALF), tl.float32)
    dleft0, dleft1, dright0, dright1 = factor, factor, factor, factor
    for start in range(0, HEADDIM, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        solved0 = load_tile(solved, p, plane, size, 1, HEADDIM, HALF)
        solved1 = load_tile(solved + HALF, p, plane, size, 1, HEADDIM, HALF)
        inner0 = load_tile(grad_inner, p, plane, size, 1, HEADDIM, HALF)
        inner1 = load_tile(grad_inner + HALF, p, plane, size, 1, HEADDIM, HALF)
        tile = load_tile(
            state, n, p, stride_state_n, stride_state_p, STATE, HEADDIM
        )
        grad_tile = load_tile(
            grad, n, p, stride_grad_n, stride_grad_p, STATE, HEADDIM
        )
        dleft0 = add_dot(dleft0, tile, inner0)
        dleft1 = add_dot(dleft1, tile, inner1)
        dright0 = add_dot(dright0, grad_tile, solved0)
        dright1 = add_dot(dright1, grad_tile, solved1)
        core00 = add_dot(core00, tl.trans(solved0), -inner0)
        core01 = add_dot(core01, tl.trans(solved0), -inner1)
        core10 = add_dot(core10, tl.trans(solved1), -inner0)
        core11 = add_dot(core11, tl.trans(solved1), -inner1)
    # The inverted matrix is I - right^T left / 2.
    half_u = -0.5 * load_tile(U, n, plane, stride_U_n, stride_U_r, STATE, RANK)
    half_v = -0.5 * load_tile(V, n, plane, stride_V_n, stride_V_r, STATE, RANK)
    angle = load_angle(theta, plane, stride_theta_r, RANK)[None, :]
    dleft0 = add_dot(add_dot(dleft0, half_v, core00), half_u, core10)
    dleft1 = add_dot(add_dot(dleft1, half_v, core01), half_u, core11)
    left0 = half_u * angle
    left1 = -half_v * angle
    dright0 = add_dot(
        add_dot(dright0, left0, tl.trans(core00)), left1, tl.trans(core01)
    )
    dright1 = add_dot(
        add_dot(dright1, left0, tl.trans(core10)), left1, tl.trans(core11)
    )
    dU += batch * stride_dU_batch + head * stride_dU_head
    dV += batch * stride_dV_batch + head * stride_dV_head
    store_tile(
        dU,
        dleft0 * angle + dright1,
        n,
        plane,
        stride_dU_n,
        stride_dU_r,
        STATE,
        RANK,
    )
    store_tile(
        dV,
        dright0 - dleft1 * angle,
        n,
        plane,
        stride_dV_n,
        stride_dV_r,
        STATE,
        RANK,
    )
    partial = -2.0 * tl.sum(half_u * dleft0 - half_v * dleft1, 0)
    cells = tl.num_programs(0).to(tl.int64)
    dtheta += (tl.program_id(1) * cells + cell) * RANK
    tl.store(dtheta + plane, partial, mask=plane < RANK)
