"""Device functions that all kernels of the Cayley rotation use.

Constants:

- ``HEADDIM``, ``STATE``, ``RANK``: sizes of the tensors.
- ``BLOCK_P``, ``BLOCK_N``, ``BLOCK_R``: tile sizes over these.
- ``HALF``: ``RANK``, padded. The linear system of the low-rank form has two
  blocks of ``HALF`` unknowns.
- ``SIZE``: unknowns of the linear system, padded.

No product sums over more than 32 elements at a time: exact float32 products
hold whole rows of their operands in registers.
"""

import triton
import triton.language as tl

TUNING_KEY = ['HEADDIM', 'STATE', 'RANK']


@triton.jit
def locate(heads):
    """Batch and head of this program, in 64 bits for the offsets."""
    program = tl.program_id(0).to(tl.int64)
    return program // heads, program % heads


@triton.jit
def load_tile(
    pointer, rows, columns, stride_row, stride_column, row_end, column_end
):
    """Load a tile in float32, zero outside."""
    mask = (rows < row_end)[:, None] & (columns < column_end)[None, :]
    offsets = (
        rows.to(tl.int64)[:, None] * stride_row
        + columns.to(tl.int64)[None, :] * stride_column
    )
    return tl.load(pointer + offsets, mask=mask, other=0.0).to(tl.float32)


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
def add_dot(acc, left, right):
    """Exact float32 product, added to ``acc``: rounded ones do not rotate."""
    return tl.dot(left, right, acc, input_precision='ieee')


@triton.jit
def load_angle(theta, plane, stride_r, RANK: tl.constexpr):
    """Rotation strengths in float32, zero outside."""
    return tl.load(theta + plane * stride_r, mask=plane < RANK, other=0.0).to(
        tl.float32
    )


@triton.jit
def identity(SIZE: tl.constexpr):
    """Identity matrix."""
    index = tl.arange(0, SIZE)
    return tl.where(index[:, None] == index[None, :], 1.0, 0.0)


@triton.jit
def store_inverse(
    pointer, matrix, SIZE: tl.constexpr, HALF: tl.constexpr, USED: tl.constexpr
):
    """Invert a matrix that is the identity in its padding, and store it.

    Gauss-Jordan elimination in place, with partial pivoting. Rows are not
    swapped: where row i was the pivot of column j, row i holds row j of the
    inverse, and column j holds its column i. The store puts them right.
    """
    index = tl.arange(0, SIZE)
    done = index % HALF >= USED
    row_of = index
    column_of = index
    for step in range(SIZE // HALF * USED):
        column = step // USED * HALF + step % USED
        is_column = index == column
        in_column = is_column[None, :]
        entries = tl.sum(tl.where(in_column, matrix, 0.0), 1)
        # A NaN counts as the largest: it has to spread, not to hide.
        size = tl.where(entries == entries, tl.abs(entries), float('inf'))
        pivot = tl.argmax(tl.where(done, -1.0, size), 0)
        is_pivot = index == pivot
        in_row = is_pivot[:, None]
        matrix = tl.where(in_column, tl.where(in_row, 1.0, 0.0), matrix)
        value = tl.sum(tl.where(is_pivot, entries, 0.0), 0)
        row = tl.sum(tl.where(in_row, matrix, 0.0), 0) / value
        matrix = tl.where(
            in_row, row[None, :], matrix - entries[:, None] * row[None, :]
        )
        row_of = tl.where(is_pivot, column, row_of)
        column_of = tl.where(is_column, pivot, column_of)
        done = done | is_pivot
    tl.store(pointer + row_of[:, None] * SIZE + column_of[None, :], matrix)
