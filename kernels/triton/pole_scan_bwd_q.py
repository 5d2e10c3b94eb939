"""Backward of the pole scan: gradients of the coefficients.

    dq_{t,g,i} = -sum over channels c of group g of lam_{t,c} y_{t-i,c}

Names as in `pole_scan_fwd`, and
    BT, BC: tokens and channels of one tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.launch import (
    autotune,
    device_guard,
    over_warps,
)

_MOST_COLUMNS = 32
_MOST_TOKENS = 128
# Values of the running sums of all taps, held by the threads of a program.
_SUMS = 4096


# fmt: off
@autotune(over_warps(4, 8), key=['R', 'BC', 'E_PER_G'])
@triton.jit
def _pole_scan_bwd_kernel_q(
    lam, y, h0, dq, E, L, E_PER_G, G, s_y_b, s_y_l, s_y_c, s_dq_b, s_dq_l, s_dq_g, s_dq_i,
    R: tl.constexpr, HAS_H: tl.constexpr, REVERSE: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):
    blocks = tl.cdiv(L, BT)
    g = tl.program_id(0) % G
    first = (tl.program_id(0) // G) % blocks * BT
    b = (tl.program_id(0) // G // blocks).to(tl.int64)
    # Tokens are counted in the order in which they are processed.
    t = first + tl.arange(0, BT)
    k = tl.arange(0, BC)
    one = tl.full((), -1 if REVERSE else 1, tl.int64)
    origin = tl.full((), 0, tl.int64) + (L - 1 if REVERSE else 0)
    base = b * s_y_b + origin * s_y_l + (g * E_PER_G).to(tl.int64) * s_y_c
    at = base + (t * one * s_y_l)[:, None] + (k.to(tl.int64) * s_y_c)[None, :]

    sums = ()
    for _ in tl.static_range(R):
        sums = sums + (tl.zeros((BT, BC), tl.float32),)
    for start in range(0, E_PER_G, BC):
        column = (k < E_PER_G - start)[None, :]
        shift = start * tl.full((), 1, tl.int64) * s_y_c
        adjoint = tl.load(lam + at + shift, mask=(t < L)[:, None] & column, other=0.0)
        updated = ()
        for i in tl.static_range(R):
            token = t - (i + 1)
            past = tl.load(y + at + shift - (i + 1) * one * s_y_l, mask=((token >= 0) & (t < L))[:, None] & column, other=0.0)
            if HAS_H:
                # Output -1 is row 0 of the history.
                row = (-1 - token)[:, None]
                inside = (row >= 0) & (row < R) & column
                channel = g * E_PER_G + start + k[None, :]
                past += tl.load(h0 + (b * R + row) * E + channel, mask=inside, other=0.0)
            updated = updated + (sums[i] + adjoint * past,)
        sums = updated

    tokens = (origin + t * one) * s_dq_l
    at_q = dq + b * s_dq_b + g.to(tl.int64) * s_dq_g + tokens
    for i in tl.static_range(R):
        total = -tl.sum(sums[i], axis=1)
        tl.store(at_q + i * s_dq_i, total.to(dq.dtype.element_ty), mask=t < L)
# fmt: on


def coefficient_gradient(
    lam: Tensor, y: Tensor, q: Tensor, history: Tensor | None, reverse: bool
) -> Tensor:
    """Sum the adjoint times past outputs over the channels of a group.

    Args:
        lam (Tensor): Adjoint in float32, strides of ``y``.
        y (Tensor): Recurrence output in float32, shape
            ``(batch, length, channels)``.
        q (Tensor): Coefficients, shape ``(batch, length, groups, order)``.
        history (Tensor, optional): Outputs before the first processed token,
            contiguous in float32.
        reverse (bool): Whether the last token was processed first.

    Returns:
        Tensor: Gradient of ``q``.
    """
    batch, length, groups, order = q.shape
    channels = y.shape[2]
    width = channels // groups
    dq = torch.empty_like(q)
    columns = min(_MOST_COLUMNS, triton.next_power_of_2(width))
    tokens = triton.next_power_of_2(_SUMS // (order * columns) + 1) // 2
    tokens = min(_MOST_TOKENS, tokens)
    grid = (batch * triton.cdiv(length, tokens) * groups,)
    with device_guard(y):
        _pole_scan_bwd_kernel_q[grid](
            lam,
            y,
            history,
            dq,
            channels,
            length,
            width,
            groups,
            *y.stride(),
            *dq.stride(),
            R=order,
            HAS_H=history is not None,
            REVERSE=reverse,
            BT=tokens,
            BC=columns,
        )
    return dq
