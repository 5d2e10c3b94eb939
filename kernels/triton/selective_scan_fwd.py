"""Forward kernel of the selective scan.

One program walks through all tokens of a block of channels, with the state
in registers. Tokens are read in tiles of four, one tile ahead; within a tile
the recurrence is unrolled.

Constants: STATE is the size of the state and N the same padded, BLOCK_D the
number of channels of a program, CHUNK the number of tokens between
checkpoints.
"""

import triton
import triton.language as tl

from mmssm.kernels.triton.launch import autotune, over_warps
from mmssm.kernels.triton.selective_scan_parts import (
    LOG2_E,
    TOKENS,
    advance,
    four_columns,
    join_columns,
    load_channels,
    load_state,
    load_tile,
    present_tokens,
    program_coordinates,
    seek,
    step_sizes,
    store_tile,
)
from mmssm.kernels.triton.selective_scan_tiling import fits_forward


# fmt: off
@autotune(
    over_warps(1, 2, 4, 8, 16),
    key=['STATE', 'BLOCK_D', 'SOFTPLUS'],
    fits=fits_forward,
)
@triton.jit(do_not_specialize=['length'])
def _selective_scan_fwd_kernel(
    u, delta, A, B, C, D, z, delta_bias, initial_state,
    y, last_state, checkpoints,
    groups, dim_per_group, length,
    u_batch, u_dim, u_time,
    delta_batch, delta_dim, delta_time,
    B_batch, B_group, B_state, B_time,
    C_batch, C_group, C_state, C_time,
    z_batch, z_dim, z_time,
    y_batch, y_dim, y_time,
    SOFTPLUS: tl.constexpr,
    REVERSE: tl.constexpr,
    STATE: tl.constexpr,
    N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # fmt: on
    batch, group, block, channels, channel_mask = program_coordinates(
        groups, dim_per_group, BLOCK_D
    )
    states = tl.arange(0, N)
    channel_rows = channel_mask[:, None]
    state_rows = (states < STATE)[:, None]
    mask = state_rows & channel_mask[None, :]
    chunks = tl.cdiv(length, CHUNK)
    per_state = groups * dim_per_group * STATE

    u_first, u_step = seek(u + batch * u_batch, u_time, length, REVERSE)
    delta_first, delta_step = seek(
        delta + batch * delta_batch, delta_time, length, REVERSE
    )
    B_first, B_step = seek(
        B + batch * B_batch + group * B_group, B_time, length, REVERSE
    )
    C_first, C_step = seek(
        C + batch * C_batch + group * C_group, C_time, length, REVERSE
    )
    y_first, y_step = seek(y + batch * y_batch, y_time, length, REVERSE)
    u_rows = channels * u_dim
    delta_rows = channels * delta_dim
    B_rows = states * B_state
    C_rows = states * C_state

    rate = load_state(A, channels, states, mask, length, STATE) * LOG2_E
    bias = load_channels(delta_bias, channels, channel_mask)
    skip = load_channels(D, channels, channel_mask)
    h = tl.zeros((N, BLOCK_D), tl.float32)
    if initial_state is not None:
        initial = initial_state + batch * per_state
        h = load_state(initial, channels, states, mask, length, STATE)
    kept = channels[None, :] * STATE + states[:, None]
    checkpoint = checkpoints + batch * chunks * per_state

    present = present_tokens(0, length)
    next_u = load_tile(u_first, u_step, u_rows, 0, channel_rows & present)
    next_delta = load_tile(
        delta_first, delta_step, delta_rows, 0, channel_rows & present
    )
    next_B = load_tile(B_first, B_step, B_rows, 0, state_rows & present)
    next_C = load_tile(C_first, C_step, C_rows, 0, state_rows & present)
    for start in range(0, length, TOKENS):
        if start % CHUNK == 0:
            tl.store(checkpoint + kept, h, mask)
            checkpoint += per_state
        u_tile = next_u.to(tl.float32)
        raw = next_delta.to(tl.float32) + bias
        into = four_columns(next_B.to(tl.float32))
        out_of = four_columns(next_C.to(tl.float32))
        here = channel_rows & present_tokens(start, length)
        dt = step_sizes(raw, present_tokens(start, length), SOFTPLUS)

        following = start + TOKENS
        present = present_tokens(following, length)
        next_u = load_tile(
            u_first, u_step, u_rows, following, channel_rows & present
        )
        next_delta = load_tile(
            delta_first,
            delta_step,
            delta_rows,
            following,
            channel_rows & present,
        )
        next_B = load_tile(
            B_first, B_step, B_rows, following, state_rows & present
        )
        next_C = load_tile(
            C_first, C_step, C_rows, following, state_rows & present
        )

        steps = four_columns(dt)
        inputs = four_columns(dt * u_tile)
        sums = ()
        for j in tl.static_range(TOKENS):
            h, decay = advance(h, steps[j], inputs[j], into[j], rate)
            sums = sums + (tl.sum(h * out_of[j][:, None], axis=0),)
        y_tile = join_columns(sums)
        if D is not None:
            y_tile += skip * u_tile
        if z is not None:
            z_first, z_step = seek(
                z + batch * z_batch, z_time, length, REVERSE
            )
            gate = load_tile(
                z_first, z_step, channels * z_dim, start, here
            ).to(tl.float32)
            y_tile *= gate * tl.sigmoid(gate)
        store_tile(y_first, y_step, channels * y_dim, start, here, y_tile)
    tl.store(last_state + batch * per_state + kept, h, mask)
