"""Backward kernels of the Cayley rotation, dense form.

With E the inverse, the forward pass is solved = state E, out = 2 solved -
state. So the gradient of the inverted matrix is -solved^T grad_inner with
grad_inner = 2 grad E^T. The first kernel writes ``solved`` and
``grad_inner``, (batch heads, headdim, SIZE), and the second one reads them.

The constants are explained in ``cayley_rotate_parts``.
"""

import triton
import triton.language as tl

from mmssm.kernels.triton.cayley_rotate_fwd import load_skew
from mmssm.kernels.triton.cayley_rotate_parts import (
    add_dot,
    identity,
    invert,
    load_tile,
    locate,
    store_tile,
)


@triton.jit
def _cayley_rotate_bwd_kernel_dense_state(
    grad, state, U, V, theta, dstate, solved, grad_inner,
    stride_grad_batch, stride_grad_head, stride_grad_p, stride_grad_n,
    stride_state_batch, stride_state_head, stride_state_p, stride_state_n,
    stride_U_batch, stride_U_head, stride_U_n, stride_U_r,
    stride_V_batch, stride_V_head, stride_V_n, stride_V_r,
    stride_theta_batch, stride_theta_head, stride_theta_r,
    stride_dstate_batch, stride_dstate_head, stride_dstate_p, stride_dstate_n,
    heads,
    HEADDIM: tl.constexpr, STATE: tl.constexpr, RANK: tl.constexpr,
    SIZE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradient of the state, dense form."""
    batch, head = locate(heads)
    grad += batch * stride_grad_batch + head * stride_grad_head
    state += batch * stride_state_batch + head * stride_state_head
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    dstate += batch * stride_dstate_batch + head * stride_dstate_head
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
    zero = tl.zeros((BLOCK_P, SIZE), tl.float32)
    offset = (batch * heads + head) * HEADDIM * SIZE
    tile = load_tile(
        state, p, n, stride_state_p, stride_state_n, HEADDIM, STATE
    )
    store_tile(
        solved + offset,
        add_dot(zero, tile, inverse),
        p,
        n,
        SIZE,
        1,
        HEADDIM,
        SIZE,
    )
    grad_tile = load_tile(
        grad, p, n, stride_grad_p, stride_grad_n, HEADDIM, STATE
    )
    through = 2.0 * add_dot(zero, grad_tile, tl.trans(inverse))
    store_tile(grad_inner + offset, through, p, n, SIZE, 1, HEADDIM, SIZE)
    store_tile(
        dstate,
        through - grad_tile,
        p,
        n,
        stride_dstate_p,
        stride_dstate_n,
        HEADDIM,
        STATE,
    )


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
    SIZE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradients of U, V and theta, dense form, for some columns of U, V."""
    batch, head = locate(heads)
    cell = batch * heads + head
    U += batch * stride_U_batch + head * stride_U_head
    V += batch * stride_V_batch + head * stride_V_head
    theta += batch * stride_theta_batch + head * stride_theta_head
    dU += batch * stride_dU_batch + head * stride_dU_head
    dV += batch * stride_dV_batch + head * stride_dV_head
    n = tl.arange(0, SIZE)
    solved += cell * HEADDIM * SIZE
    grad_inner += cell * HEADDIM * SIZE
    product = tl.zeros((SIZE, SIZE), tl.float32)
    for start in range(0, HEADDIM, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        solved_tile = load_tile(solved, n, p, 1, SIZE, SIZE, HEADDIM)
        inner_tile = load_tile(grad_inner, p, n, SIZE, 1, HEADDIM, SIZE)
        product = add_dot(product, solved_tile, inner_tile)
    # The gradient of S, of which only the skew part acts.
    skew = 0.5 * (product - tl.trans(product))
    plane = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    u = load_tile(U, n, plane, stride_U_n, stride_U_r, STATE, RANK)
    v = load_tile(V, n, plane, stride_V_n, stride_V_r, STATE, RANK)
    angle = tl.load(
        theta + plane * stride_theta_r, mask=plane < RANK, other=0.0
    ).to(tl.float32)
    zero = tl.zeros((SIZE, BLOCK_R), tl.float32)
    towards_u = add_dot(zero, skew, v)
    towards_v = add_dot(zero, skew, -u)
    store_tile(
        dU,
        towards_u * angle[None, :],
        n,
        plane,
        stride_dU_n,
        stride_dU_r,
        STATE,
        RANK,
    )
    store_tile(
        dV,
        towards_v * angle[None, :],
        n,
        plane,
        stride_dV_n,
        stride_dV_r,
        STATE,
        RANK,
    )
    tl.store(
        dtheta + cell * RANK + plane,
        tl.sum(u * towards_u, 0),
        mask=plane < RANK,
    )
