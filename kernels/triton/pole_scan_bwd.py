"""Backward of the pole scan: the adjoint sweep.

The adjoint runs in its transposed form, which reads the coefficients of the
current token only::

    lam_t = g_t + a_1;  a_j <- a_{j+1} - q_{t,j} lam_t

Gradients of the coefficients follow in `pole_scan_bwd_q`, parallel over time.

Names as in `pole_scan_fwd`, and
    M: outputs of the sweep.
    SAVE_LAM: store the adjoint in float32 beside the gradient of ``eta``.
    s_<tensor>_<axis>: strides; those of ``y`` serve ``deta`` and ``lam`` too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.launch import autotune, device_guard
from mmssm.kernels.triton.pole_scan_bwd_q import coefficient_gradient
from mmssm.kernels.triton.pole_scan_fwd import (
    as_float32,
    strides_or_zeros,
)
from mmssm.kernels.triton.pole_scan_tokens import (
    load_tokens,
    move,
    tokens_per_block,
)


# fmt: off
@triton.jit
def _retreat(a, d_skip, tokens, skip, outputs, steps, here, N: tl.constexpr, M: tl.constexpr, R: tl.constexpr, HAS_X: tl.constexpr, HAS_Z: tl.constexpr, SAVE_LAM: tl.constexpr, U: tl.constexpr):
    """Go back U tokens; the new adjoint history and gradient of D."""
    W: tl.constexpr = N + R
    for j in tl.static_range(U):
        grad = tokens[j * W].to(tl.float32)
        if HAS_Z:
            gate = tokens[j * W + N - 1].to(tl.float32)
            before = tokens[j * W + N - 2].to(tl.float32)
            if HAS_X:
                before += skip * tokens[j * W + 1].to(tl.float32)
            sigmoid = tl.sigmoid(gate)
            slope = sigmoid * (1 + gate * (1 - sigmoid))
            dz = outputs[M - 1]
            tl.store(dz + j * steps[M - 1], (grad * before * slope).to(dz.dtype.element_ty), mask=here)
            grad *= gate * sigmoid
        if HAS_X:
            dx = outputs[1 + SAVE_LAM]
            tl.store(dx + j * steps[1 + SAVE_LAM], (grad * skip).to(dx.dtype.element_ty), mask=here)
            d_skip += grad * tokens[j * W + 1].to(tl.float32)
        lam = grad + a[0]
        deta = outputs[0]
        tl.store(deta + j * steps[0], lam.to(deta.dtype.element_ty), mask=here)
        if SAVE_LAM:
            tl.store(outputs[1] + j * steps[1], lam, mask=here)
        moved = ()
        for i in tl.static_range(R - 1):
            moved = moved + (a[i + 1] - tokens[j * W + N + i].to(tl.float32) * lam,)
        a = moved + (-tokens[j * W + N + R - 1].to(tl.float32) * lam,)
    return a, d_skip


@autotune(
    configs=[
        triton.Config({'BLOCK': 32, 'BUDGET': 48}, num_warps=1),
        triton.Config({'BLOCK': 32, 'BUDGET': 1}, num_warps=1),
    ],
    key=['E', 'R', 'HAS_X', 'HAS_Z'],
)
@triton.jit
def _pole_scan_bwd_kernel_lam(
    go, q, x, D, z, y, da0, deta, lam, dx, dD, dz, dh0, E, L, E_PER_G,
    s_go_b, s_go_l, s_go_c, s_q_b, s_q_l, s_q_g, s_q_i, s_x_b, s_x_l, s_x_c, s_z_b, s_z_l, s_z_c,
    s_y_b, s_y_l, s_y_c, s_dx_b, s_dx_l, s_dx_c, s_dz_b, s_dz_l, s_dz_c,
    R: tl.constexpr, HAS_X: tl.constexpr, HAS_Z: tl.constexpr, SAVE_LAM: tl.constexpr, REVERSE: tl.constexpr,
    BLOCK: tl.constexpr, BUDGET: tl.constexpr,
):
    N: tl.constexpr = 1 + HAS_X + 2 * HAS_Z
    M: tl.constexpr = 1 + SAVE_LAM + HAS_X + HAS_Z
    U: tl.constexpr = tokens_per_block(BUDGET, N + R)
    blocks = tl.cdiv(E, BLOCK)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    here = c < E
    g = (c // E_PER_G).to(tl.int64)
    c = c.to(tl.int64)
    one = tl.full((), 1 if REVERSE else -1, tl.int64)
    last = tl.full((), 0, tl.int64) + (0 if REVERSE else L - 1)

    q += b * s_q_b + last * s_q_l + g * s_q_g
    step_q = one * s_q_l
    at_y = b * s_y_b + last * s_y_l + c * s_y_c
    inputs = (go + b * s_go_b + last * s_go_l + c * s_go_c,)
    steps_in = (one * s_go_l,)
    outputs = (deta + at_y,)
    steps_out = (one * s_y_l,)
    skip = 0.0
    if SAVE_LAM:
        outputs = outputs + (lam + at_y,)
        steps_out = steps_out + (one * s_y_l,)
    if HAS_X:
        skip = tl.load(D + c, mask=here, other=0.0)
        inputs = inputs + (x + b * s_x_b + last * s_x_l + c * s_x_c,)
        steps_in = steps_in + (one * s_x_l,)
        outputs = outputs + (dx + b * s_dx_b + last * s_dx_l + c * s_dx_c,)
        steps_out = steps_out + (one * s_dx_l,)
    if HAS_Z:
        inputs = inputs + (y + at_y, z + b * s_z_b + last * s_z_l + c * s_z_c)
        steps_in = steps_in + (one * s_y_l, one * s_z_l)
        outputs = outputs + (dz + b * s_dz_b + last * s_dz_l + c * s_dz_c,)
        steps_out = steps_out + (one * s_dz_l,)

    history = b * R * E + c
    a = ()
    for i in tl.static_range(R):
        a = a + (tl.load(da0 + history + i * E, mask=here, other=0.0),)
    d_skip = tl.zeros((BLOCK,), tl.float32)

    whole = L // U
    tokens = load_tokens(inputs, steps_in, q, step_q, s_q_i, L, here, N, R, U)
    for n in range(whole):
        inputs = move(inputs, steps_in, N, U)
        q += U * step_q
        ahead = load_tokens(inputs, steps_in, q, step_q, s_q_i, L - (n + 1) * U, here, N, R, U)
        a, d_skip = _retreat(a, d_skip, tokens, skip, outputs, steps_out, here, N, M, R, HAS_X, HAS_Z, SAVE_LAM, U)
        outputs = move(outputs, steps_out, M, U)
        tokens = ahead
    for _ in range(whole * U, L):
        token = load_tokens(inputs, steps_in, q, step_q, s_q_i, 1, here, N, R, 1)
        a, d_skip = _retreat(a, d_skip, token, skip, outputs, steps_out, here, N, M, R, HAS_X, HAS_Z, SAVE_LAM, 1)
        inputs = move(inputs, steps_in, N, 1)
        q += step_q
        outputs = move(outputs, steps_out, M, 1)

    for i in tl.static_range(R):
        tl.store(dh0 + history + i * E, a[i], mask=here)
    if HAS_X:
        tl.store(dD + b * E + c, d_skip, mask=here)
# fmt: on


def pole_scan_bwd(
    grad_out: Tensor,
    grad_final_history: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    y: Tensor,
    eta_dtype: torch.dtype,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    """Run the adjoint of `pole_scan_fwd`.

    Args:
        grad_out (Tensor): Gradient of the output, shape
            ``(batch, length, channels)``.
        grad_final_history (Tensor): Gradient of the final history, shape
            ``(batch, order, channels)``.
        q (Tensor): As in the forward, like all up to ``initial_history``.
        x (Tensor, optional): Input of the skip.
        D (Tensor, optional): Skip weight.
        z (Tensor, optional): Gate before SiLU.
        initial_history (Tensor, optional): Outputs before the first token.
        y (Tensor): Recurrence output in float32.
        eta_dtype (torch.dtype): Dtype of the gradient of ``eta``.
        reverse (bool): Whether the last token was processed first.

    Returns:
        tuple[Tensor | None, ...]: Gradients of ``eta``, ``q``, ``x``, ``D``,
        ``z`` and ``initial_history``; None for absent inputs.
    """
    batch, _, channels = grad_out.shape
    order = q.shape[3]
    deta = torch.empty_like(y, dtype=eta_dtype)
    # Rounding the adjoint once more would reach the coefficients.
    save_lam = eta_dtype != torch.float32
    lam = torch.empty_like(y) if save_lam else deta
    dx = None if x is None else torch.empty_like(x)
    dz = None if z is None else torch.empty_like(z)
    dD = None
    if D is not None:
        dD = y.new_empty(batch, channels)
    dhistory = y.new_empty(batch, order, channels)

    def grid(config: dict[str, int]) -> tuple[int]:
        return (batch * triton.cdiv(channels, config['BLOCK']),)

    with device_guard(y):
        _pole_scan_bwd_kernel_lam[grid](
            grad_out,
            q,
            x,
            as_float32(D),
            z,
            y,
            as_float32(grad_final_history),
            deta,
            lam if save_lam else None,
            dx,
            dD,
            dz,
            dhistory,
            channels,
            grad_out.shape[1],
            channels // q.shape[2],
            *grad_out.stride(),
            *q.stride(),
            *strides_or_zeros(x),
            *strides_or_zeros(z),
            *y.stride(),
            *strides_or_zeros(dx),
            *strides_or_zeros(dz),
            R=order,
            HAS_X=x is not None,
            HAS_Z=z is not None,
            SAVE_LAM=save_lam,
            REVERSE=reverse,
        )
    dq = coefficient_gradient(lam, y, q, as_float32(initial_history), reverse)
    if dD is not None:
        dD = dD.sum(0).to(D.dtype)
    if initial_history is None:
        return deta, dq, dx, dD, dz, None
    return deta, dq, dx, dD, dz, dhistory.to(initial_history.dtype)
