"""Forward kernels of the Cayley rotation.

The constants are explained in ``cayley_rotate_parts``.
"""

import triton
import triton.language as tl

from mmssm.kernels.triton.cayley_rotate_parts import (
    add_dot,
    identity,
    invert,
    load_tile,
    locate,
    store_tile,
)


@triton.jit
def load_factors(
    U, V, theta, n,
    stride_U_n, stride_U_r, stride_V_n, stride_V_r, stride_theta_r,
    STATE: tl.constexpr, HALF: tl.constexpr, USED: tl.constexpr,
):  # fmt: skip
    """Rows ``n`` of left = [U theta, -V theta] and right = [V, U]."""
    column = tl.arange(0, 2 * HALF)
    plane = column % HALF
    second = (column >= HALF)[None, :]
    u = load_tile(U, n, plane, stride_U_n, stride_U_r, STATE, USED)
    v = load_tile(V, n, plane, stride_V_n, stride_V_r, STATE, USED)
    angle = tl.load(
        theta + plane * stride_theta_r, mask=plane < USED, other=0.0
    ).to(tl.float32)
    left = tl.where(second, -v, u) * angle[None, :]
    return left, tl.where(second, u, v)


@triton.jit
def load_skew(
    U, V, theta,
    stride_U_n, stride_U_r, stride_V_n, stride_V_r, stride_theta_r,
    STATE: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """S = U theta V^T - V theta U^T, whole."""
    n = tl.arange(0, SIZE)
    product = tl.zeros((SIZE, SIZE), tl.float32)
    for start in range(0, RANK, BLOCK_R):
        plane = start + tl.arange(0, BLOCK_R)
        u = load_tile(U, n, plane, stride_U_n, stride_U_r, STATE, RANK)
        v = load_tile(V, plane, n, stride_V_r, stride_V_n, RANK, STATE)
        angle = tl.load(
            theta + plane * stride_theta_r, mask=plane < RANK, other=0.0
        ).to(tl.float32)
        product = add_dot(product, u * angle[None, :], v)
    return product - tl.trans(product)


@triton.jit
def _cayley_rotate_fwd_kernel(
    state, U, V, theta, out,
    stride_state_batch, stride_state_head, stride_state_p, stride_state_n,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, USED: tl.constexpr,
    HALF: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rotate by Z = I + left (I - right^T left / 2)^-1 right^T."""
    batch, head = locate(heads)
    state += batch * stride_state_batch + head * stride_state_head
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    out += (batch * heads + head) * HEADDIM * STATE
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    size: tl.constexpr = 2 * HALF
    product = tl.zeros((size, size), tl.float32)
    inner = tl.zeros((BLOCK_P, size), tl.float32)
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        left, right = load_factors(
            U,
            V,
            theta,
            n,
            stride_U_n,
            stride_U_r,
            stride_V_n,
            stride_V_r,
            stride_theta_r,
            STATE,
            HALF,
            USED,
        )
        tile = load_tile(
            state, p, n, stride_state_p, stride_state_n, HEADDIM, STATE
        )
        product = add_dot(product, tl.trans(right), left)
        inner = add_dot(inner, tile, left)
    inverse = invert(identity(size) - 0.5 * product, size, HALF, USED)
    solved = add_dot(tl.zeros((BLOCK_P, size), tl.float32), inner, inverse)
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        left, right = load_factors(
            U,
            V,
            theta,
            n,
            stride_U_n,
            stride_U_r,
            stride_V_n,
            stride_V_r,
            stride_theta_r,
            STATE,
            HALF,
            USED,
        )
        tile = load_tile(
            state, p, n, stride_state_p, stride_state_n, HEADDIM, STATE
        )
        tile = add_dot(tile, solved, tl.trans(right))
        store_tile(out, tile, p, n, STATE, 1, HEADDIM, STATE)


@triton.jit
def _cayley_rotate_fwd_kernel_dense(
    state, U, V, theta, out,
    stride_state_batch, stride_state_head, stride_state_p, stride_state_n,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Rotate by Z = 2 (I - S/2)^-1 - I."""
    batch, head = locate(heads)
    state += batch * stride_state_batch + head * stride_state_head
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    out += (batch * heads + head) * HEADDIM * STATE
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, SIZE)
    skew = load_skew(
        U,
        V,
        theta,
        stride_U_n,
        stride_U_r,
        stride_V_n,
        stride_V_r,
        stride_theta_r,
        STATE,
        RANK,
        SIZE,
        BLOCK_R,
    )
    inverse = invert(identity(SIZE) - 0.5 * skew, SIZE, SIZE, STATE)
    tile = load_tile(
        state, p, n, stride_state_p, stride_state_n, HEADDIM, STATE
    )
    solved = add_dot(tl.zeros((BLOCK_P, SIZE), tl.float32), tile, inverse)
    store_tile(out, 2.0 * solved - tile, p, n, STATE, 1, HEADDIM, STATE)
