"""Device functions that both directions of the selective scan use."""

import triton
import triton.language as tl

# exp(dt A) = exp2(dt (A log2 e)): the product with log2 e is taken once.
LOG2_E = tl.constexpr(1.4426950408889634)
# Tokens that are read at once and unrolled.
TOKENS = tl.constexpr(4)


@triton.jit
def program_coordinates(groups, dim_per_group, BLOCK_D: tl.constexpr):
    """Batch entry, group, block within the group, and the block's channels.

    A block never spans two groups: ``B`` and ``C`` are one per program.
    """
    blocks = tl.cdiv(dim_per_group, BLOCK_D)
    program = tl.program_id(0)
    block = program % blocks
    group = program // blocks % groups
    batch = program // blocks // groups
    within = block * BLOCK_D + tl.arange(0, BLOCK_D)
    channels = group * dim_per_group + within
    mask = within < dim_per_group
    return batch.to(tl.int64), group.to(tl.int64), block, channels, mask


@triton.jit
def seek(entry, stride_time, length, REVERSE: tl.constexpr):
    """First processed token of a sequence, and the way to the next one."""
    step = stride_time
    if REVERSE:
        entry += (length - 1).to(tl.int64) * stride_time
        step = -stride_time
    return entry, step


@triton.jit
def present_tokens(start, length):
    """Which tokens of a tile are not past the end, ``(1, TOKENS)``."""
    return (start + tl.arange(0, TOKENS) < length)[None, :]


@triton.jit
def tile_pointers(first, step, rows, start):
    """Pointers to the tile ``(rows, TOKENS)`` that begins at ``start``.

    What changes from tile to tile is added first, in 64 bits and once for
    all lanes; lanes only keep offsets of 32 bits, to save registers.
    """
    tile = first + tl.cast(start, tl.int64) * step
    return tile + (rows[:, None] + tl.arange(0, TOKENS)[None, :] * step)


@triton.jit
def load_tile(first, step, rows, start, mask):
    """Load a tile in the dtype of the pointer; zero outside the mask."""
    return tl.load(tile_pointers(first, step, rows, start), mask, other=0.0)


@triton.jit
def store_tile(first, step, rows, start, mask, tile):
    """Store a tile in the dtype of the pointer."""
    tl.store(tile_pointers(first, step, rows, start), tile, mask)


@triton.jit
def load_state(entry, channels, states, mask, length, STATE: tl.constexpr):
    """Load ``(states, channels)`` from a contiguous ``(dim, state)``.

    Lanes lie along the channels, so that a lane holds all of its channels
    and sums over the state need few shuffles. The compiler would rather have
    them along the state, as it lies in memory; a stride that it does not
    know to be 1 keeps it from that.
    """
    one = tl.minimum(length, 1)
    offsets = channels[None, :] * STATE + states[:, None] * one
    return tl.load(entry + offsets, mask, other=0.0).to(tl.float32)


@triton.jit
def load_channels(vector, channels, mask):
    """Load one value per channel as ``(channels, 1)``, zero if absent."""
    values = tl.zeros((channels.shape[0],), tl.float32)
    if vector is not None:
        values = tl.load(vector + channels, mask, other=0.0).to(tl.float32)
    return values[:, None]


@triton.jit
def four_columns(tile):
    """Split ``(rows, 4)`` into its columns, each ``(rows,)``."""
    pairs = tl.reshape(tile, (tile.shape[0], 2, 2))
    even, odd = tl.split(pairs)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def join_columns(columns):
    """Inverse of `four_columns`."""
    even = tl.join(columns[0], columns[2])
    odd = tl.join(columns[1], columns[3])
    return tl.reshape(tl.join(even, odd), (columns[0].shape[0], 4))


@triton.jit
def softplus(x):
    """log(1 + exp(x)) to full relative precision, also where exp(x) < 1e-7.

    The large part is taken out, so that exp never overflows; what rounding
    took from 1 + exp is given back by the quotient.
    """
    small = tl.exp(-tl.abs(x))
    rounded = 1.0 + small
    lost = rounded == 1.0
    quotient = small / tl.where(lost, 1.0, rounded - 1.0)
    rest = tl.where(lost, small, tl.log(rounded) * quotient)
    return tl.maximum(x, 0.0) + rest


@triton.jit
def step_sizes(raw, present, SOFTPLUS: tl.constexpr):
    """Step sizes ``(channels, TOKENS)`` from biased ``delta``.

    A token past the end gets step 0, with which it leaves the state as it
    is.
    """
    dt = raw
    if SOFTPLUS:
        dt = softplus(raw)
    return tl.where(present, dt, 0.0)


@triton.jit
def advance(h, dt, dt_u, B, rate):
    """The state one token later, and by what it decayed."""
    decay = tl.exp2(dt[None, :] * rate)
    return decay * h + dt_u[None, :] * B[:, None], decay
