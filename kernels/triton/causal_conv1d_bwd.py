"""Backward of the causal depthwise convolution.

The adjoint of the output reaches an input through the ``W`` outputs from it
on. Their activations are recomputed from a window of ``2 W - 1`` frames in
registers, so that nothing is stored between two passes. Gradients of filter
and bias are sums of a tile, added up afterwards in fixed order.

Names as in `causal_conv1d_tiles`, and
    T: blocks of tokens. Initial states count as tokens here.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.causal_conv1d_tiles import (
    contiguous,
    load_frames,
    load_tokens,
    place,
    state_row,
    tile_sizes,
)
from mmssm.kernels.triton.launch import (
    autotune,
    device_guard,
    over_warps,
)

_TILE = 512
_NARROW_FILTER = 4


def _fits(config: triton.Config, W: int, **_: Any) -> bool:
    """Two values per thread or one: a wide filter holds many frames each."""
    return config.num_warps == 16 or W <= _NARROW_FILTER


# fmt: off
@autotune(over_warps(8, 16), key=['W', 'BC', 'SILU'], fits=_fits)
@triton.jit
def _causal_conv1d_bwd_kernel(
    dy, x, weight, bias, init, dx, sums, dinit, D, L, T,
    s_dy_b, s_dy_d, s_dy_l, s_x_b, s_x_d, s_x_l, s_dx_b, s_dx_d, s_dx_l,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_INIT: tl.constexpr, SILU: tl.constexpr, REVERSE: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):
    b, block, c = place(L, D, T, BT, BC)
    t = block * BT + tl.arange(0, BT)
    if HAS_INIT and not REVERSE:
        t -= W - 1
    here = (c < D)[None, :]
    x += b * s_x_b + (c * s_x_d)[None, :]
    dy += b * s_dy_b + (c * s_dy_d)[None, :]
    at_init = ((b * D + c) * (W - 1))[None, :]
    if HAS_INIT:
        init += at_init

    taps = ()
    for k in tl.static_range(W):
        taps = taps + (tl.load(weight + c * W + k, mask=c < D, other=0.0).to(tl.float32)[None, :],)
    shift = tl.zeros((1, BC), tl.float32)
    if HAS_BIAS:
        shift += tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    # Frames W - 1 steps back up to the token itself; with an activation up
    # to W - 1 steps ahead.
    frames = ()
    for k in tl.static_range(2 * W - 1 if SILU else W):
        back = W - 1 - k
        source = t + back if REVERSE else t - back
        frames = frames + (load_frames(x, init, source, s_x_l, L, here, HAS_INIT, REVERSE, W),)

    total = tl.zeros((BT, BC), tl.float32)
    sums += ((b * T + block) * (W + HAS_BIAS)) * D + c
    for ahead in tl.static_range(W):
        output = t - ahead if REVERSE else t + ahead
        grad = load_tokens(dy, output, s_dy_l, L, here)
        if SILU:
            value = shift + tl.zeros((BT, BC), tl.float32)
            for k in tl.static_range(W):
                value += taps[k] * frames[ahead + k]
            sigmoid = tl.sigmoid(value)
            exists = ((output >= 0) & (output < L))[:, None]
            # A frame that is infinite must not reach outputs beyond the end.
            grad = tl.where(exists, grad * sigmoid * (1 + value * (1 - sigmoid)), 0.0)
        total += taps[W - 1 - ahead] * grad
        if ahead == 0:
            for k in tl.static_range(W):
                tl.store(sums + k * D, tl.sum(grad * frames[k], axis=0), mask=c < D)
            if HAS_BIAS:
                tl.store(sums + W * D, tl.sum(grad, axis=0), mask=c < D)

    dx += b * s_dx_b + (c * s_dx_d)[None, :] + t.to(tl.int64)[:, None] * s_dx_l
    exists = ((t >= 0) & (t < L))[:, None] & here
    tl.store(dx, total.to(dx.dtype.element_ty), mask=exists)
    if HAS_INIT:
        row = state_row(t, L, REVERSE, W)
        exists = ((row >= 0) & (row < W - 1))[:, None] & here
        tl.store(dinit + at_init + row[:, None], total.to(dinit.dtype.element_ty), mask=exists)
# fmt: on


def causal_conv1d_bwd(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `causal_conv1d_fwd`.

    Args:
        grad_y (Tensor): Gradient of the output, shape
            ``(batch, dim, length)``.
        x (Tensor): As in the forward, like all arguments after it.
        weight (Tensor): Filters.
        bias (Tensor, optional): Bias.
        initial_states (Tensor, optional): Inputs before the first frame.
        silu (bool): Whether SiLU was applied.
        reverse (bool): Whether the last frame was processed first.

    Returns:
        tuple[Tensor | None, ...]: Gradients of ``x``, ``weight``, ``bias``
        and ``initial_states``; None for absent inputs.
    """
    batch, dim, length = x.shape
    width = weight.shape[1]
    has_init = initial_states is not None
    dx = torch.empty_like(x)
    dinit = None
    if has_init:
        dinit = initial_states.new_empty(initial_states.shape)
    tokens, channels = tile_sizes(x, _TILE)
    frames = length + (width - 1 if has_init else 0)
    blocks = triton.cdiv(frames, tokens)
    rows = width + (bias is not None)
    sums = x.new_empty(batch * blocks, rows, dim, dtype=torch.float32)
    with device_guard(x):
        _causal_conv1d_bwd_kernel[
            (batch * blocks * triton.cdiv(dim, channels),)
        ](
            grad_y,
            x,
            weight.contiguous(),
            contiguous(bias),
            contiguous(initial_states),
            dx,
            sums,
            dinit,
            dim,
            length,
            blocks,
            *grad_y.stride(),
            *x.stride(),
            *dx.stride(),
            W=width,
            HAS_BIAS=bias is not None,
            HAS_INIT=has_init,
            SILU=silu,
            REVERSE=reverse,
            BT=tokens,
            BC=channels,
        )
    sums = sums.sum(0)
    # Outputs of an operator may not share memory.
    dweight = sums[:width].T.to(weight.dtype, copy=True)
    dbias = None
    if bias is not None:
        dbias = sums[width].to(bias.dtype, copy=True)
    return dx, dweight, dbias, dinit
