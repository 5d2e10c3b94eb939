"""Kernels of the Cayley rotation by Z = 2 E - I, both directions.

E = (I - S/2)^-1 with S = U theta V^T - V theta U^T.

The constants are explained in ``cayley_rotate_parts``.
"""

import triton
import triton.language as tl

from mmssm.kernels.triton.cayley_rotate_parts import (
    TUNING_KEY,
    add_dot,
    identity,
    load_angle,
    load_tile,
    locate,
    store_inverse,
    store_tile,
)
from mmssm.kernels.triton.launch import autotune, over_warps


@autotune(over_warps(8, 4, stages=1), key=TUNING_KEY)
@triton.jit
def _cayley_rotate_kernel_dense_inverse(
    U, V, theta, inverse,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    heads,
    STATE: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """E of every head, (batch heads, SIZE, SIZE)."""
    batch, head = locate(heads)
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    n = tl.arange(0, SIZE)
    matrix = identity(SIZE)
    for start in range(0, RANK, BLOCK_R):
        plane = start + tl.arange(0, BLOCK_R)
        half_angle = 0.5 * load_angle(theta, plane, stride_theta_r, RANK)
        u = load_tile(U, n, plane, stride_U_n, stride_U_r, STATE, RANK)
        v = load_tile(V, n, plane, stride_V_n, stride_V_r, STATE, RANK)
        scaled = u * half_angle[None, :]
        matrix = add_dot(matrix, v, tl.trans(scaled))
        matrix = add_dot(matrix, -scaled, tl.trans(v))
    inverse += (batch * heads + head) * SIZE * SIZE
    store_inverse(inverse, matrix, SIZE, SIZE, STATE)


@autotune(over_warps(8, 4, stages=1), key=TUNING_KEY)
@triton.jit
def _cayley_rotate_kernel_dense_apply(
    rows, inverse, solved, out,
    stride_rows_batch, stride_rows_head, stride_rows_p, stride_rows_n,
    stride_out_batch, stride_out_head, stride_out_p, stride_out_n,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """out = 2 solved - rows with solved = rows E, or rows E^T.

    Both results are optional.
    """
    batch, head = locate(heads)
    cell = batch * heads + head
    rows += batch * stride_rows_batch + head * stride_rows_head
    inverse += cell * SIZE * SIZE
    tiles_n: tl.constexpr = (STATE + BLOCK_N - 1) // BLOCK_N
    p = tl.program_id(1) // tiles_n * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.program_id(1) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    stride_row: tl.constexpr = 1 if TRANSPOSED else SIZE
    stride_column: tl.constexpr = SIZE if TRANSPOSED else 1
    product = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for start in range(0, STATE, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        left = load_tile(
            rows, p, k, stride_rows_p, stride_rows_n, HEADDIM, STATE
        )
        right = load_tile(
            inverse, k, n, stride_row, stride_column, STATE, STATE
        )
        product = add_dot(product, left, right)
    if solved is not None:
        store_tile(
            solved + cell * HEADDIM * STATE,
            product,
            p,
            n,
            STATE,
            1,
            HEADDIM,
            STATE,
        )
    if out is not None:
        out += batch * stride_out_batch + head * stride_out_head
        tile = load_tile(
            rows, p, n, stride_rows_p, stride_rows_n, HEADDIM, STATE
        )
        store_tile(
            out,
            2.0 * product - tile,
            p,
            n,
            stride_out_p,
            stride_out_n,
            HEADDIM,
            STATE,
        )


@triton.jit
def project(
    rows, factor, p, plane, stride_factor_n, stride_factor_r,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """rows @ factor for contiguous rows."""
    product = tl.zeros((p.shape[0], plane.shape[0]), tl.float32)
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        tile = load_tile(rows, p, n, STATE, 1, HEADDIM, STATE)
        product = add_dot(
            product,
            tile,
            load_tile(
                factor, n, plane, stride_factor_n, stride_factor_r, STATE, RANK
            ),
        )
    return product


# With 4 warps it spills.
@autotune(over_warps(8, stages=1), key=TUNING_KEY)
@triton.jit
def _cayley_rotate_bwd_kernel_dense_factors(
    U, V, theta, solved, grad_inner, dU, dV, dtheta,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    stride_dU_batch, stride_dU_head, stride_dU_n, stride_dU_r,
    stride_dV_batch, stride_dV_head, stride_dV_n, stride_dV_r,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradients of U, V and theta.

    With ``solved`` = state E and ``grad_inner`` = grad E^T, the gradient of S
    is solved^T grad_inner. Minus its transpose it is M, which is never formed:
    dU = M V theta, dV = -M U theta, dtheta = diag(U^T M V). ``dtheta``
    (tiles over state, batch, heads, RANK) holds partial sums.
    """
    batch, head = locate(heads)
    cell = batch * heads + head
    cells = tl.num_programs(0).to(tl.int64)
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    dU += batch * stride_dU_batch + head * stride_dU_head
    dV += batch * stride_dV_batch + head * stride_dV_head
    solved += cell * HEADDIM * STATE
    grad_inner += cell * HEADDIM * STATE
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    plane = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    on_v = tl.zeros((BLOCK_N, BLOCK_R), tl.float32)
    on_u = on_v
    for start in range(0, HEADDIM, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        tile = load_tile(solved, n, p, 1, STATE, STATE, HEADDIM)
        inner_v = project(
            grad_inner,
            V,
            p,
            plane,
            stride_V_n,
            stride_V_r,
            HEADDIM,
            STATE,
            RANK,
            BLOCK_N,
        )
        on_v = add_dot(on_v, tile, inner_v)
        inner_u = project(
            grad_inner,
            U,
            p,
            plane,
            stride_U_n,
            stride_U_r,
            HEADDIM,
            STATE,
            RANK,
            BLOCK_N,
        )
        on_u = add_dot(on_u, tile, inner_u)
        tile = load_tile(grad_inner, n, p, 1, STATE, STATE, HEADDIM)
        solved_v = project(
            solved,
            V,
            p,
            plane,
            stride_V_n,
            stride_V_r,
            HEADDIM,
            STATE,
            RANK,
            BLOCK_N,
        )
        on_v = add_dot(on_v, tile, -solved_v)
        solved_u = project(
            solved,
            U,
            p,
            plane,
            stride_U_n,
            stride_U_r,
            HEADDIM,
            STATE,
            RANK,
            BLOCK_N,
        )
        on_u = add_dot(on_u, tile, -solved_u)
    angle = load_angle(theta, plane, stride_theta_r, RANK)
    store_tile(
        dU,
        on_v * angle[None, :],
        n,
        plane,
        stride_dU_n,
        stride_dU_r,
        STATE,
        RANK,
    )
    store_tile(
        dV,
        -on_u * angle[None, :],
        n,
        plane,
        stride_dV_n,
        stride_dV_r,
        STATE,
        RANK,
    )
    u = load_tile(U, n, plane, stride_U_n, stride_U_r, STATE, RANK)
    dtheta += (tl.program_id(1) * cells + cell) * RANK
    tl.store(dtheta + plane, tl.sum(u * on_v, 0), mask=plane < RANK)
