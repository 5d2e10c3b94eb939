"""Pieces that all kernels of the SSD recurrence are made of.

Constants of the kernels in ``ssd_chunk_scan_fwd`` and ``ssd_chunk_scan_bwd``:

- ``HEADDIM``, ``STATE``: sizes of a state.
- ``CHUNK``: frames per chunk, a power of two.
- ``BLOCK_P``, ``BLOCK_N``: tile sizes over ``HEADDIM`` and ``STATE``.
- ``OPERAND``: dtype of the operands of matrix products, bfloat16 or float32;
  they are always summed in float32.
- ``UPCAST``: whether rounded operands are multiplied in float32, for the
  interpreter, whose bfloat16 arithmetic is wrong.
- ``PRECISION``: how float32 operands are multiplied, ``'ieee'`` or
  ``'tf32'``.

Pointers to ``sums`` and ``segments`` are those of the chunk at hand.
``segments`` counts the changes of sequence: it starts with the count that
belongs to the state before the chunk. It is None where there is one sequence.
"""

from typing import Any

import triton
import triton.language as tl

# What decides how fast the kernels of matrix products are.
TUNING_KEY = ['HEADDIM', 'STATE', 'CHUNK', 'BLOCK_P', 'BLOCK_N', 'PRECISION']


def matrix_configs(*stages: int) -> list[triton.Config]:
    """Configurations of kernels that need the registers of 8 warps."""
    return [
        triton.Config({}, num_warps=8, num_stages=number) for number in stages
    ]


def is_pipelined(config: triton.Config, PRECISION: str, **_: Any) -> bool:
    """Whether the number of stages matters: exact products have no pipeline.

    One configuration is left for these.
    """
    return PRECISION != 'ieee' or config.num_stages == 2


@triton.jit
def locate(heads, chunks, heads_per_group):
    """Batch, chunk, head and group of this program.

    64 bits, but for the chunk: any axis may have the longest stride.
    """
    program = tl.program_id(0)
    batch_chunk = program // heads
    batch = (batch_chunk // chunks).to(tl.int64)
    head = program % heads
    group = (head // heads_per_group).to(tl.int64)
    return batch, batch_chunk % chunks, head.to(tl.int64), group


@triton.jit
def load_tile(
    pointer, rows, columns, stride_row, stride_column, row_end, column_end
):
    """Load a tile, zero outside."""
    mask = (rows < row_end)[:, None] & (columns < column_end)[None, :]
    offsets = (
        rows.to(tl.int64)[:, None] * stride_row
        + columns.to(tl.int64)[None, :] * stride_column
    )
    return tl.load(pointer + offsets, mask=mask, other=0.0)


@triton.jit
def store_tile(
    pointer,
    tile,
    rows,
    columns,
    stride_row,
    stride_column,
    row_end,
    column_end,
):
    """Store a tile in the dtype of the tensor."""
    mask = (rows < row_end)[:, None] & (columns < column_end)[None, :]
    offsets = (
        rows.to(tl.int64)[:, None] * stride_row
        + columns.to(tl.int64)[None, :] * stride_column
    )
    tl.store(pointer + offsets, tile.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def add_dot(
    acc,
    left,
    right,
    OPERAND: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Matrix product, added to ``acc``."""
    left = left.to(OPERAND)
    right = right.to(OPERAND)
    if UPCAST:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, acc, input_precision=PRECISION)


@triton.jit
def decay_from_start(sums, segments, CHUNK: tl.constexpr):
    """Decay from the start of the chunk to each frame, its own included."""
    rows = tl.arange(0, CHUNK)
    decay = tl.exp(tl.load(sums + rows))
    if segments is not None:
        same = tl.load(segments + 1 + rows) == tl.load(segments)
        decay = tl.where(same, decay, 0.0)
    return decay


@triton.jit
def decay_to_end(sums, segments, CHUNK: tl.constexpr):
    """Decay from each frame, its own excluded, to the end of the chunk."""
    rows = tl.arange(0, CHUNK)
    decay = tl.exp(tl.load(sums + CHUNK - 1) - tl.load(sums + rows))
    if segments is not None:
        same = tl.load(segments + 1 + rows) == tl.load(segments + CHUNK)
        decay = tl.where(same, decay, 0.0)
    return decay


@triton.jit
def decay_of_chunk(sums, segments, CHUNK: tl.constexpr):
    """Decay of the whole chunk."""
    decay = tl.exp(tl.load(sums + CHUNK - 1))
    if segments is not None:
        same = tl.load(segments) == tl.load(segments + CHUNK)
        decay = tl.where(same, decay, 0.0)
    return decay


@triton.jit
def decayed(
    scores, sums, segments, CHUNK: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Scores times the decay between two frames, zero unless the first is
    not the later one.

    The later frame runs along the rows, or along the columns if
    ``TRANSPOSED``.
    """
    frames = tl.arange(0, CHUNK)
    sum_of_frame = tl.load(sums + frames)
    if TRANSPOSED:
        log_decay = sum_of_frame[None, :] - sum_of_frame[:, None]
        mask = frames[None, :] >= frames[:, None]
    else:
        log_decay = sum_of_frame[:, None] - sum_of_frame[None, :]
        mask = frames[:, None] >= frames[None, :]
    if segments is not None:
        segment = tl.load(segments + 1 + frames)
        mask = mask & (segment[:, None] == segment[None, :])
    # Masked before exp, which would overflow in the other triangle.
    return tl.where(mask, scores * tl.exp(tl.where(mask, log_decay, 0.0)), 0.0)


@triton.jit
def softplus(x):
    """``log1p(exp(x))``, and ``x`` above 20."""
    power = tl.exp(x)
    rounded = 1.0 + power
    # log of the rounded sum, corrected for what the rounding took.
    log1p = tl.where(
        rounded == 1.0, power, tl.log(rounded) * (power / (rounded - 1.0))
    )
    return tl.where(x > 20.0, x, log1p)
