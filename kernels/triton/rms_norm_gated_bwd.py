"""Backward kernel of the gated RMS normalisation.

A program goes through every ``num_programs``-th tile of ROWS rows of one
group and sums the gradients of weight and bias over its rows; the launcher
adds the sums of all programs. With the normalised value n = x' / rms(x'),
x' = x or x silu(z), and the gradient dn of n,

    dx' = (dn - n mean(dn n)) / rms(x')

Constants: GROUP is the number of channels of a group. A program has COLUMNS
of them, which is all, padded; only a launch without gradients of the inputs
may divide a group into PARTS.
"""

from typing import Any

import triton
import triton.language as tl

from mmssm.kernels.triton.launch import autotune, over_warps
from mmssm.kernels.triton.rms_norm_gated_fwd import number_of_warps


def _fits(
    config: triton.Config,
    COLUMNS: int,
    ROWS: int,
    WITH_SUMS: bool,
    **_: Any,
) -> bool:
    per_warp = 256 if WITH_SUMS else 512
    return config.num_warps in number_of_warps(ROWS * COLUMNS, per_warp)


# fmt: off
@autotune(
    over_warps(1, 2, 4, 8, 16),
    key=['GROUP', 'ROWS', 'WITH_INPUTS', 'WITH_SUMS'],
    fits=_fits,
)
@triton.jit(do_not_specialize=['rows'])
def _rms_norm_gated_bwd_kernel(
    grad_y, x, weight, bias, z, rstd, dx, dweight, dbias, dz,
    rows,
    grad_y_row, grad_y_column, x_row, x_column, z_row, z_column,
    dx_row, dx_column, dz_row, dz_column,
    NORM_BEFORE_GATE: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    WITH_INPUTS: tl.constexpr,
    WITH_SUMS: tl.constexpr,
):
    # fmt: on
    program, programs = tl.program_id(0), tl.num_programs(0)
    group = tl.program_id(1) // PARTS
    groups = tl.num_programs(1) // PARTS
    part = tl.program_id(1) % PARTS
    within = part * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    column = group * GROUP + within
    here = within < GROUP
    if WITH_SUMS:
        dweight_sum = tl.zeros((ROWS, COLUMNS), tl.float32)
        dbias_sum = tl.zeros((ROWS, COLUMNS), tl.float32)

    for tile in range(program, tl.cdiv(rows, ROWS), programs):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        mask = (row < rows) & here
        # Read again for every tile: the cache has room for it, the registers
        # do not.
        weights = tl.load(weight + column, here, other=0.0).to(tl.float32)
        dy = tl.load(grad_y + row * grad_y_row + column * grad_y_column, mask, other=0.0).to(tl.float32)
        values = tl.load(x + row * x_row + column * x_column, mask, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row * groups + group, row < rows, other=0.0)
        if z is not None:
            gate = tl.load(z + row * z_row + column * z_column, mask, other=0.0).to(tl.float32)
            opening = tl.sigmoid(gate)
            slope = opening * (1.0 + gate * (1.0 - opening))
            gate *= opening
            dz_pointers = dz + row * dz_row + column * dz_column
            if NORM_BEFORE_GATE:
                normalised = values * scale
                before = normalised * weights
                if bias is not None:
                    before += tl.load(bias + column, here, other=0.0).to(tl.float32)
                if WITH_INPUTS:
                    tl.store(dz_pointers, dy * before * slope, mask)
                dy *= gate
            else:
                slope *= values
                normalised = values * gate * scale
        else:
            normalised = values * scale
        if WITH_SUMS:
            dweight_sum += dy * normalised
            if bias is not None:
                dbias_sum += dy
        if WITH_INPUTS:
            dn = dy * weights
            mean = tl.sum(dn * normalised, axis=1, keep_dims=True) / GROUP
            dvalues = (dn - normalised * mean) * scale
            if z is not None and not NORM_BEFORE_GATE:
                tl.store(dz_pointers, dvalues * slope, mask)
                dvalues *= gate
            tl.store(dx + row * dx_row + column * dx_column, dvalues, mask)

    if WITH_SUMS:
        own = program * (groups * GROUP) + column
        dweight_sum = tl.sum(dweight_sum, axis=0, keep_dims=True)
        tl.store(dweight + own, dweight_sum, here)
        if bias is not None:
            dbias_sum = tl.sum(dbias_sum, axis=0, keep_dims=True)
            tl.store(dbias + own, dbias_sum, here)
