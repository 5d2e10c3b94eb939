"""Backward kernel of the selective scan.

One program walks through all tokens of a block of channels backwards, one
chunk between checkpoints of the forward pass at a time. It first runs through
the chunk forwards and keeps every fourth state in its own piece of memory;
then it takes the groups of four from last to first, computes their states
again, now in registers, and applies the adjoint recurrence

    g_t = C_t dy_t + exp(dt_{t+1} A) g_{t+1}

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
from mmssm.kernels.triton.selective_scan_tiling import fits_backward


# fmt: off
@autotune(
    over_warps(1, 2, 4, 8),
    key=['STATE', 'BLOCK_D', 'SOFTPLUS'],
    fits=fits_backward,
)
@triton.jit(do_not_specialize=['length'])
def _selective_scan_bwd_kernel(
    grad_y, grad_last_state,
    u, delta, A, B, C, D, z, delta_bias, checkpoints, scratch,
    du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_state,
    groups, dim_per_group, length,
    grad_y_batch, grad_y_dim, grad_y_time,
    u_batch, u_dim, u_time,
    delta_batch, delta_dim, delta_time,
    B_batch, B_group, B_state, B_time,
    C_batch, C_group, C_state, C_time,
    z_batch, z_dim, z_time,
    du_batch, du_dim, du_time,
    ddelta_batch, ddelta_dim, ddelta_time,
    dz_batch, dz_dim, dz_time,
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
    batches = tl.num_programs(0) // (groups * tl.cdiv(dim_per_group, BLOCK_D))
    states = tl.arange(0, N)
    channel_rows = channel_mask[:, None]
    state_rows = (states < STATE)[:, None]
    mask = state_rows & channel_mask[None, :]
    chunks = tl.cdiv(length, CHUNK)
    dim = groups * dim_per_group
    per_state = dim * STATE

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
    dy_first, dy_step = seek(
        grad_y + batch * grad_y_batch, grad_y_time, length, REVERSE
    )
    du_first, du_step = seek(du + batch * du_batch, du_time, length, REVERSE)
    ddelta_first, ddelta_step = seek(
        ddelta + batch * ddelta_batch, ddelta_time, length, REVERSE
    )
    # Sums over the block: (blocks, batch, groups, state, length), contiguous.
    partial = ((block * batches + batch) * groups + group) * STATE * length
    dB_first, time_step = seek(dB + partial, 1, length, REVERSE)
    dC_first, time_step = seek(dC + partial, 1, length, REVERSE)

    u_rows = channels * u_dim
    delta_rows = channels * delta_dim
    B_rows = states * B_state
    C_rows = states * C_state

    rate = load_state(A, channels, states, mask, length, STATE) * LOG2_E
    bias = load_channels(delta_bias, channels, channel_mask)
    skip = load_channels(D, channels, channel_mask)
    last = grad_last_state + batch * per_state
    g = load_state(last, channels, states, mask, length, STATE)
    dA_sum = tl.zeros((N, BLOCK_D), tl.float32)
    dD_sum = tl.zeros((BLOCK_D, TOKENS), tl.float32)
    dbias_sum = tl.zeros((BLOCK_D, TOKENS), tl.float32)

    lanes = tl.arange(0, N)[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    own = tl.program_id(0).to(tl.int64) * (CHUNK // TOKENS * N * BLOCK_D)
    kept = scratch + own + lanes
    in_state = channels[None, :] * STATE + states[:, None]

    for chunks_after in range(0, chunks):
        chunk = chunks - 1 - chunks_after
        begin = chunk * CHUNK
        fours = tl.cdiv(tl.minimum(length - begin, CHUNK), TOKENS)
        # Through memory, because the lanes that read a checkpoint are not
        # those that run the recurrence.
        checkpoint = checkpoints + (batch * chunks + chunk) * per_state
        tl.store(kept, tl.load(checkpoint + in_state, mask, other=0.0))
        tl.debug_barrier()
        h = tl.load(kept)
        for four in range(0, fours):
            tl.store(kept + four * (N * BLOCK_D), h)
            start = begin + four * TOKENS
            present = present_tokens(start, length)
            here = channel_rows & present
            u_tile = load_tile(u_first, u_step, u_rows, start, here)
            raw = load_tile(
                delta_first, delta_step, delta_rows, start, here
            )
            B_tile = load_tile(
                B_first, B_step, B_rows, start, state_rows & present
            )
            dt = step_sizes(raw.to(tl.float32) + bias, present, SOFTPLUS)
            steps = four_columns(dt)
            inputs = four_columns(dt * u_tile.to(tl.float32))
            into = four_columns(B_tile.to(tl.float32))
            for j in tl.static_range(TOKENS):
                h, decay = advance(
                    h, steps[j], inputs[j], into[j], rate
                )
        tl.debug_barrier()

        for fours_after in range(0, fours):
            four = fours - 1 - fours_after
            start = begin + four * TOKENS
            present = present_tokens(start, length)
            here = channel_rows & present
            states_here = state_rows & present
            h = tl.load(kept + four * (N * BLOCK_D))
            u_tile = load_tile(u_first, u_step, u_rows, start, here)
            u_tile = u_tile.to(tl.float32)
            raw = load_tile(
                delta_first, delta_step, delta_rows, start, here
            )
            raw = raw.to(tl.float32) + bias
            B_tile = load_tile(B_first, B_step, B_rows, start, states_here)
            C_tile = load_tile(C_first, C_step, C_rows, start, states_here)
            dy = load_tile(
                dy_first, dy_step, channels * grad_y_dim, start, here
            )
            dy = dy.to(tl.float32)
            if z is not None:
                z_first, z_step = seek(
                    z + batch * z_batch, z_time, length, REVERSE
                )
                gate = load_tile(
                    z_first, z_step, channels * z_dim, start, here
                ).to(tl.float32)
                opening = tl.sigmoid(gate)
                dgate = dy * opening * (1.0 + gate * (1.0 - opening))
                dy *= gate * opening
            dt = step_sizes(raw, present, SOFTPLUS)
            steps = four_columns(dt)
            inputs = four_columns(dt * u_tile)
            into = four_columns(B_tile.to(tl.float32))
            out_of = four_columns(C_tile.to(tl.float32))
            dys = four_columns(dy)

            hs = ()
            ys = ()
            dCs = ()
            for j in tl.static_range(TOKENS):
                hs = hs + (h,)
                h, decay = advance(h, steps[j], inputs[j], into[j], rate)
                dCs = dCs + (tl.sum(h * dys[j][None, :], axis=1),)
                if z is not None:
                    ys = ys + (tl.sum(h * out_of[j][:, None], axis=0),)

            # Stored before the adjoint, to free their registers.
            store_tile(
                dC_first,
                time_step,
                states * length,
                start,
                states_here,
                join_columns(dCs),
            )
            if z is not None:
                y_tile = join_columns(ys)
                if D is not None:
                    y_tile += skip * u_tile
                dz_first, dz_step = seek(
                    dz + batch * dz_batch, dz_time, length, REVERSE
                )
                store_tile(
                    dz_first,
                    dz_step,
                    channels * dz_dim,
                    start,
                    here,
                    y_tile * dgate,
                )

            # The decays are computed again rather than kept, to save registers;
            # from negated steps, lest the compiler keep them after all.
            negated = four_columns(-dt)
            dBs = ()
            along_B = ()
            along_A = ()
            for j in tl.static_range(TOKENS - 1, -1, -1):
                g += out_of[j][:, None] * dys[j][None, :]
                dBs = (tl.sum(g * inputs[j][None, :], axis=1),) + dBs
                along_B = (tl.sum(g * into[j][:, None], axis=0),) + along_B
                g *= tl.exp2(negated[j][None, :] * -rate)
                slope = g * hs[j]
                dA_sum += slope * steps[j][None, :]
                along_A = (tl.sum(slope * rate, axis=0),) + along_A

            store_tile(
                dB_first,
                time_step,
                states * length,
                start,
                states_here,
                join_columns(dBs),
            )
            dinput = join_columns(along_B)
            du_tile = dt * dinput
            ddelta_tile = join_columns(along_A) / LOG2_E + u_tile * dinput
            if SOFTPLUS:
                ddelta_tile *= tl.sigmoid(raw)
            if delta_bias is not None:
                dbias_sum += tl.where(present, ddelta_tile, 0.0)
            if D is not None:
                du_tile += skip * dy
                dD_sum += dy * u_tile
            store_tile(
                du_first, du_step, channels * du_dim, start, here, du_tile
            )
            store_tile(
                ddelta_first,
                ddelta_step,
                channels * ddelta_dim,
                start,
                here,
                ddelta_tile,
            )
        tl.debug_barrier()

    entry = batch * per_state + in_state
    tl.store(dinitial_state + entry, g, mask)
    tl.store(dA + entry, dA_sum, mask)
    own_channels = batch * dim + channels
    if D is not None:
        tl.store(dD + own_channels, tl.sum(dD_sum, axis=1), channel_mask)
    if delta_bias is not None:
        dbias = tl.sum(dbias_sum, axis=1)
        tl.store(ddelta_bias + own_channels, dbias, channel_mask)
