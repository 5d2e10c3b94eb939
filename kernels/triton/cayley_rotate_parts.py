"""Device functions that all kernels of the Cayley rotation use.

Constants: ``SIZE`` is the padded size of the linear system. It has
``SIZE // HALF`` blocks of ``HALF`` unknowns each, the first ``USED`` of which
are real, the others padding. ``BLOCK_P``, ``BLOCK_N``, ``BLOCK_R`` are tile
sizes over headdim, state and rank.
"""

import triton
import triton.language as tl


@triton.jit
def locate(heads):
    """Batch and head of this program."""
    program = tl.program_id(0)
    return (program // heads).to(tl.int64), program % heads


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
def identity(SIZE: tl.constexpr):
    """Identity matrix."""
    index = tl.arange(0, SIZE)
    return tl.where(index[:, None] == index[None, :], 1.0, 0.0)


@triton.jit
def invert(matrix, SIZE: tl.constexpr, HALF: tl.constexpr, USED: tl.constexpr):
    """Invert a matrix that is the identity in its padding.

    Gauss-Jordan elimination in place, with partial pivoting. Rows stay where
    they are: ``pivots[i, j]`` is 1 where row i was the pivot of column j.
    """
    index = tl.arange(0, SIZE)
    done = index % HALF >= USED
    pivots = tl.where(done[None, :], identity(SIZE), 0.0)
    for step in range(SIZE // HALF * USED):
        column = step // USED * HALF + step % USED
        in_column = (index == column)[None, :]
        entries = tl.sum(tl.where(in_column, matrix, 0.0), 1)
        # A NaN counts as the largest: it has to spread, not to hide.
        size = tl.where(entries == entries, tl.abs(entries), float('inf'))
        pivot = tl.argmax(tl.where(done, -1.0, size), 0)
        is_pivot = index == pivot
        in_row = is_pivot[:, None]
        here = tl.where(in_row & in_column, 1.0, 0.0)
        pivots += here
        matrix = tl.where(in_column, here, matrix)
        value = tl.sum(tl.where(is_pivot, entries, 0.0), 0)
        row = tl.sum(tl.where(in_row, matrix, 0.0), 0) / value
        matrix = tl.where(
            in_row, row[None, :], matrix - entries[:, None] * row[None, :]
        )
        done = done | is_pivot
    order = tl.trans(pivots)
    zero = tl.zeros((SIZE, SIZE), tl.float32)
    return add_dot(zero, add_dot(zero, order, matrix), order)
