"""Forward kernel of the gated RMS normalisation.

A program normalises one group of ROWS rows. Constants: GROUP is the number
of channels of a group and COLUMNS the same padded.
"""

from typing import Any

import triton
import triton.language as tl

from mmssm.kernels.triton.launch import autotune, over_warps


def number_of_warps(elements: int, per_warp: int) -> tuple[int, int]:
    """Choices for a tile.

    Args:
        elements (int): Elements of the tile.
        per_warp (int): Elements per warp that the registers have room for.

    Returns:
        tuple[int, int]: As few warps as possible, and twice as many; 16 at
        most.
    """
    fewest = min(16, max(1, elements // per_warp))
    return fewest, min(16, 2 * fewest)


def _fits(config: triton.Config, COLUMNS: int, ROWS: int, **_: Any) -> bool:
    return config.num_warps in number_of_warps(ROWS * COLUMNS, 512)


# fmt: off
@autotune(over_warps(1, 2, 4, 8, 16), key=['GROUP', 'ROWS'], fits=_fits)
@triton.jit(do_not_specialize=['rows'])
def _rms_norm_gated_fwd_kernel(
    x, weight, bias, z, y, rstd,
    rows, eps,
    x_row, x_column, z_row, z_column, y_row, y_column,
    NORM_BEFORE_GATE: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    # fmt: on
    group = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    within = tl.arange(0, COLUMNS)[None, :]
    column = group * GROUP + within
    mask = (row < rows) & (within < GROUP)

    values = tl.load(x + row * x_row + column * x_column, mask, other=0.0)
    values = values.to(tl.float32)
    if z is not None:
        gate = tl.load(z + row * z_row + column * z_column, mask, other=0.0)
        gate = gate.to(tl.float32)
        gate *= tl.sigmoid(gate)
        if not NORM_BEFORE_GATE:
            values *= gate
    mean_square = tl.sum(values * values, axis=1, keep_dims=True) / GROUP
    scale = 1.0 / tl.sqrt(mean_square + eps)
    tl.store(rstd + row * tl.num_programs(1) + group, scale, row < rows)
    values *= scale
    values *= tl.load(weight + column, within < GROUP).to(tl.float32)
    if bias is not None:
        values += tl.load(bias + column, within < GROUP).to(tl.float32)
    if z is not None and NORM_BEFORE_GATE:
        values *= gate
    tl.store(y + row * y_row + column * y_column, values, mask)
