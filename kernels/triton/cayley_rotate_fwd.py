"""Kernels of the Cayley rotation by Z = I + left E right^T.

left = [U theta, -V theta], right = [V, U], E = (I - right^T left / 2)^-1.

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
def _cayley_rotate_kernel_inverse(
    U, V, theta, inverse,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    heads,
    STATE: tl.constexpr, RANK: tl.constexpr, HALF: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """E of every head, (batch heads, 2 HALF, 2 HALF)."""
    batch, head = locate(heads)
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    size: tl.constexpr = 2 * HALF
    column = tl.arange(0, size)
    plane = column % HALF
    second = column >= HALF
    angle = load_angle(theta, plane, stride_theta_r, RANK)
    product = tl.zeros((size, size), tl.float32)
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        u = load_tile(U, n, plane, stride_U_n, stride_U_r, STATE, RANK)
        v = load_tile(V, n, plane, stride_V_n, stride_V_r, STATE, RANK)
        left = tl.where(second[None, :], -v, u) * angle[None, :]
        right = tl.where(second[None, :], u, v)
        product = add_dot(product, tl.trans(right), left)
    inverse += (batch * heads + head) * size * size
    store_inverse(inverse, identity(size) - 0.5 * product, size, HALF, RANK)


@triton.jit
def project(
    rows, first, second, p, plane,
    stride_rows_p, stride_rows_n, stride_first_n, stride_first_r, stride_second_n, stride_second_r,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """rows @ first and rows @ second."""
    on_first = tl.zeros((p.shape[0], plane.shape[0]), tl.float32)
    on_second = on_first
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        tile = load_tile(
            rows, p, n, stride_rows_p, stride_rows_n, HEADDIM, STATE
        )
        factor = load_tile(
            first, n, plane, stride_first_n, stride_first_r, STATE, RANK
        )
        on_first = add_dot(on_first, tile, factor)
        factor = load_tile(
            second, n, plane, stride_second_n, stride_second_r, STATE, RANK
        )
        on_second = add_dot(on_second, tile, factor)
    return on_first, on_second


@triton.jit
def store_sum(
    out, rows, on_first, on_second, first, second, p, plane,
    stride_out_p, stride_out_n, stride_rows_p, stride_rows_n,
    stride_first_n, stride_first_r, stride_second_n, stride_second_r,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store rows + on_first @ first^T + on_second @ second^T."""
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        tile = load_tile(
            rows, p, n, stride_rows_p, stride_rows_n, HEADDIM, STATE
        )
        factor = load_tile(
            first, plane, n, stride_first_r, stride_first_n, RANK, STATE
        )
        tile = add_dot(tile, on_first, factor)
        factor = load_tile(
            second, plane, n, stride_second_r, stride_second_n, RANK, STATE
        )
        tile = add_dot(tile, on_second, factor)
        store_tile(out, tile, p, n, stride_out_p, stride_out_n, HEADDIM, STATE)


@triton.jit
def multiply(
    first, second, matrix, plane, stride_row, stride_column, HALF: tl.constexpr
):
    """The two halves of [first, second] @ matrix."""
    zero = tl.zeros(first.shape, tl.float32)
    down = HALF * stride_row
    right = HALF * stride_column
    block = load_tile(
        matrix, plane, plane, stride_row, stride_column, HALF, HALF
    )
    on_first = add_dot(zero, first, block)
    block = load_tile(
        matrix + down, plane, plane, stride_row, stride_column, HALF, HALF
    )
    on_first = add_dot(on_first, second, block)
    block = load_tile(
        matrix + right, plane, plane, stride_row, stride_column, HALF, HALF
    )
    on_second = add_dot(zero, first, block)
    block = load_tile(
        matrix + down + right,
        plane,
        plane,
        stride_row,
        stride_column,
        HALF,
        HALF,
    )
    on_second = add_dot(on_second, second, block)
    return on_first, on_second


@autotune(over_warps(8, 4, stages=1), key=TUNING_KEY)
@triton.jit
def _cayley_rotate_fwd_kernel(
    state, U, V, theta, inverse, out,
    stride_state_batch, stride_state_head, stride_state_p, stride_state_n,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr,
    HALF: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rotate some rows of the state: out = state + state left E right^T."""
    batch, head = locate(heads)
    cell = batch * heads + head
    state += batch * stride_state_batch + head * stride_state_head
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    size: tl.constexpr = 2 * HALF
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    plane = tl.arange(0, HALF)
    angle = load_angle(theta, plane, stride_theta_r, RANK)[None, :]
    on_u, on_v = project(
        state, U, V, p, plane,
        stride_state_p, stride_state_n, stride_U_n, stride_U_r, stride_V_n, stride_V_r,
        HEADDIM, STATE, RANK, BLOCK_N,
    )  # fmt: skip
    on_v, on_u = multiply(
        on_u * angle,
        -on_v * angle,
        inverse + cell * size * size,
        plane,
        size,
        1,
        HALF,
    )
    store_sum(
        out + cell * HEADDIM * STATE, state, on_v, on_u, V, U, p, plane,
        STATE, 1, stride_state_p, stride_state_n,
        stride_V_n, stride_V_r, stride_U_n, stride_U_r,
        HEADDIM, STATE, RANK, BLOCK_N,
    )  # fmt: skip
