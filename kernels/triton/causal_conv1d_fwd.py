"""Forward of the causal depthwise convolution.

Names as in `causal_conv1d_tiles`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.causal_conv1d_tiles import (
    contiguous,
    load_frames,
    place,
    tile_sizes,
)
from mmssm.kernels.triton.launch import (
    autotune,
    device_guard,
    over_warps,
)

_TILE = 1024


# fmt: off
@autotune(over_warps(4, 8), key=['W', 'BC', 'SILU'])
@triton.jit
def _causal_conv1d_fwd_kernel(
    x, weight, bias, init, y, D, L,
    s_x_b, s_x_d, s_x_l, s_y_b, s_y_d, s_y_l,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_INIT: tl.constexpr, SILU: tl.constexpr, REVERSE: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):
    b, block, c = place(L, D, tl.cdiv(L, BT), BT, BC)
    t = block * BT + tl.arange(0, BT)
    here = (c < D)[None, :]
    x += b * s_x_b + (c * s_x_d)[None, :]
    if HAS_INIT:
        init += ((b * D + c) * (W - 1))[None, :]
    total = tl.zeros((BT, BC), tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(W):
        back = W - 1 - k
        source = t + back if REVERSE else t - back
        frames = load_frames(x, init, source, s_x_l, L, here, HAS_INIT, REVERSE, W)
        tap = tl.load(weight + c * W + k, mask=c < D, other=0.0).to(tl.float32)
        total += frames * tap[None, :]
    if SILU:
        total *= tl.sigmoid(total)
    y += b * s_y_b + (c * s_y_d)[None, :] + t.to(tl.int64)[:, None] * s_y_l
    tl.store(y, total.to(y.dtype.element_ty), mask=(t < L)[:, None] & here)
# fmt: on


def causal_conv1d_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
) -> Tensor:
    """Convolve all frames.

    Args:
        x (Tensor): Input, shape ``(batch, dim, length)``.
        weight (Tensor): Filters, shape ``(dim, width)``.
        bias (Tensor, optional): Shape ``(dim,)``.
        initial_states (Tensor, optional): Inputs before the first processed
            frame, oldest first, shape ``(batch, dim, width - 1)``.
        silu (bool): Whether SiLU is applied.
        reverse (bool): Whether the last frame is processed first.

    Returns:
        Tensor: Output like ``x``.
    """
    batch, dim, length = x.shape
    y = torch.empty_like(x)
    tokens, channels = tile_sizes(x, _TILE)
    blocks = triton.cdiv(length, tokens) * triton.cdiv(dim, channels)
    with device_guard(x):
        _causal_conv1d_fwd_kernel[(batch * blocks,)](
            x,
            weight.contiguous(),
            contiguous(bias),
            contiguous(initial_states),
            y,
            dim,
            length,
            *x.stride(),
            *y.stride(),
            W=weight.shape[1],
            HAS_BIAS=bias is not None,
            HAS_INIT=initial_states is not None,
            SILU=silu,
            REVERSE=reverse,
            BT=tokens,
            BC=channels,
        )
    return y
