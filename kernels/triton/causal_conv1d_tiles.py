"""What both directions of the causal convolution share.

A program computes a tile of BT tokens and BC channels; tokens keep their
order in memory in both directions, so that neighbours stay neighbours. A
frame ``o`` steps back in processing order lies at ``t - o``, or at ``t + o``
if REVERSE.

Names in the kernels:
    D, L, W: channels, length, width of the filter.
    HAS_BIAS, HAS_INIT: optional tensors. SILU: activation.
    s_<tensor>_<axis>: strides, of batch (b), channel (d) and token (l).
"""

import triton
import triton.language as tl
from torch import Tensor

_MOST_CHANNELS = 32
_MOST_TOKENS = 128


# fmt: off
@triton.jit
def place(L, D, T, BT: tl.constexpr, BC: tl.constexpr):
    """Batch index, block of tokens and channels of this program.

    T is the number of blocks of tokens.
    """
    blocks = tl.cdiv(D, BC)
    c = (tl.program_id(0) % blocks) * BC + tl.arange(0, BC)
    block = (tl.program_id(0) // blocks) % T
    b = tl.program_id(0) // blocks // T
    return b.to(tl.int64), block, c.to(tl.int64)


@triton.jit
def load_tokens(x, t, s_l, L, here):
    """Tile of the tokens t in float32, zero where there are none."""
    offsets = t.to(tl.int64)[:, None] * s_l
    mask = ((t >= 0) & (t < L))[:, None] & here
    return tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_frames(x, init, t, s_l, L, here, HAS_INIT: tl.constexpr, REVERSE: tl.constexpr, W: tl.constexpr):
    """Like `load_tokens`, with the initial states before the first token."""
    frames = load_tokens(x, t, s_l, L, here)
    if HAS_INIT:
        row = state_row(t, L, REVERSE, W)
        mask = ((row >= 0) & (row < W - 1))[:, None] & here
        frames += tl.load(init + row[:, None], mask=mask, other=0.0).to(tl.float32)
    return frames


@triton.jit
def state_row(t, L, REVERSE: tl.constexpr, W: tl.constexpr):
    """Column of the initial states at which the token t would lie."""
    return L - 1 - t + W - 1 if REVERSE else t + W - 1
# fmt: on


def tile_sizes(x: Tensor, size: int) -> tuple[int, int]:
    """Tokens and channels of a tile, longer along the dense axis.

    Args:
        x (Tensor): Input, shape ``(batch, dim, length)``.
        size (int): Values of a tile, a power of 2.

    Returns:
        tuple[int, int]: Tokens and channels, powers of 2.
    """
    _, dim, length = x.shape
    if x.stride(1) == 1:
        channels = min(_MOST_CHANNELS, triton.next_power_of_2(dim))
        return size // channels, channels
    tokens = min(_MOST_TOKENS, triton.next_power_of_2(length))
    return tokens, size // tokens


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """A small tensor, contiguous."""
    return None if tensor is None else tensor.contiguous()
