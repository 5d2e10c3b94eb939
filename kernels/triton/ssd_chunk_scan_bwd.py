"""Backward kernels of the SSD recurrence.

The constants are explained in ``ssd_chunk_scan_tiles``. ``grad_states`` is
the gradient of the state at the end of every chunk, shaped like ``states``,
the state at the start of every chunk.
"""

import triton
import triton.language as tl

from mmssm.kernels.triton.launch import autotune
from mmssm.kernels.triton.ssd_chunk_scan_tiles import (
    TUNING_KEY,
    add_dot,
    decay_from_start,
    decay_of_chunk,
    decay_to_end,
    decayed,
    is_pipelined,
    load_tile,
    locate,
    matrix_configs,
    store_tile,
)


@autotune(matrix_configs(2, 3), key=TUNING_KEY, fits=is_pipelined)
@triton.jit
def _ssd_chunk_scan_bwd_kernel_inputs(
    grad_y, x, B, C, D, z, steps, sums, segments, grad_states, dx, grad_steps, dD,
    stride_grad_y_batch, stride_grad_y_length, stride_grad_y_head, stride_grad_y_p,
    stride_x_batch, stride_x_length, stride_x_head, stride_x_p,
    stride_B_batch, stride_B_length, stride_B_group, stride_B_n,
    stride_C_batch, stride_C_length, stride_C_group, stride_C_n,
    stride_D_head, stride_D_p,
    stride_z_batch, stride_z_length, stride_z_head, stride_z_p,
    stride_dx_batch, stride_dx_length, stride_dx_head, stride_dx_p,
    length, heads, chunks, heads_per_group,
    HEADDIM: tl.constexpr, STATE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    OPERAND: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the inputs, and of the step sizes as their factors.

    ``grad_steps`` (tiles over headdim, batch, heads, chunks, CHUNK) and
    ``dD`` (batch, chunks, heads, headdim) hold partial sums.
    """
    batch, chunk, head, group = locate(heads, chunks, heads_per_group)
    cell = (batch * heads + head) * chunks + chunk
    cells = (tl.num_programs(0)).to(tl.int64)
    sums += cell * CHUNK
    if segments is not None:
        segments += batch * (chunks * CHUNK + 1) + chunk * CHUNK
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = tl.arange(0, CHUNK)
    frames = chunk * CHUNK + inside
    B += batch * stride_B_batch + group * stride_B_group
    C += batch * stride_C_batch + group * stride_C_group
    state_of_chunk = (batch * chunks + chunk) * heads + head
    grad_states += state_of_chunk * HEADDIM * STATE
    # (earlier frame, later frame)
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    acc = tl.zeros((CHUNK, BLOCK_P), tl.float32)
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        B_tile = load_tile(
            B, frames, n, stride_B_length, stride_B_n, length, STATE
        )
        C_tile = load_tile(
            C, n, frames, stride_C_n, stride_C_length, STATE, length
        )
        grad_state = load_tile(grad_states, n, p, 1, STATE, STATE, HEADDIM)
        scores = add_dot(scores, B_tile, C_tile, OPERAND, UPCAST, PRECISION)
        acc = add_dot(acc, B_tile, grad_state, OPERAND, UPCAST, PRECISION)
    acc *= decay_to_end(sums, segments, CHUNK)[:, None]
    grad_y += batch * stride_grad_y_batch + head * stride_grad_y_head
    grad = load_tile(
        grad_y,
        frames,
        p,
        stride_grad_y_length,
        stride_grad_y_p,
        length,
        HEADDIM,
    ).to(tl.float32)
    if z is not None:
        z += batch * stride_z_batch + head * stride_z_head
        z_tile = load_tile(
            z, frames, p, stride_z_length, stride_z_p, length, HEADDIM
        ).to(tl.float32)
        grad *= z_tile * tl.sigmoid(z_tile)
    mixing = decayed(scores, sums, segments, CHUNK, True)
    acc = add_dot(acc, mixing, grad, OPERAND, UPCAST, PRECISION)
    x += batch * stride_x_batch + head * stride_x_head
    x_tile = load_tile(
        x, frames, p, stride_x_length, stride_x_p, length, HEADDIM
    ).to(tl.float32)
    grad_steps += (tl.program_id(1) * cells + cell) * CHUNK
    tl.store(grad_steps + inside, tl.sum(acc * x_tile, 1))
    acc *= tl.load(steps + cell * CHUNK + inside)[:, None]
    if D is not None:
        is_p = p < HEADDIM
        skip = tl.load(
            D + head * stride_D_head + p * stride_D_p, mask=is_p, other=0.0
        )
        acc += grad * skip[None, :]
        tl.store(
            dD + state_of_chunk * HEADDIM + p,
            tl.sum(grad * x_tile, 0),
            mask=is_p,
        )
    dx += batch * stride_dx_batch + head * stride_dx_head
    store_tile(
        dx, acc, frames, p, stride_dx_length, stride_dx_p, length, HEADDIM
    )


@autotune(matrix_configs(2, 3), key=TUNING_KEY, fits=is_pipelined)
@triton.jit
def _ssd_chunk_scan_bwd_kernel_matrices(
    grad_y, x, B, C, z, steps, sums, segments, states, grad_states, dB, dC, grad_decay,
    stride_grad_y_batch, stride_grad_y_length, stride_grad_y_head, stride_grad_y_p,
    stride_x_batch, stride_x_length, stride_x_head, stride_x_p,
    stride_B_batch, stride_B_length, stride_B_group, stride_B_n,
    stride_C_batch, stride_C_length, stride_C_group, stride_C_n,
    stride_z_batch, stride_z_length, stride_z_head, stride_z_p,
    length, heads, chunks, heads_per_group,
    HEADDIM: tl.constexpr, STATE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    OPERAND: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of B, C and the log decay of every frame.

    ``dB`` and ``dC`` (batch, length, heads, state) are per head, to be summed
    over the heads of a group; ``grad_decay`` (tiles over state, batch, heads,
    chunks, CHUNK) holds partial sums.
    """
    batch, chunk, head, group = locate(heads, chunks, heads_per_group)
    cell = (batch * heads + head) * chunks + chunk
    cells = (tl.num_programs(0)).to(tl.int64)
    sums += cell * CHUNK
    if segments is not None:
        segments += batch * (chunks * CHUNK + 1) + chunk * CHUNK
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = tl.arange(0, CHUNK)
    frames = chunk * CHUNK + inside
    grad_y += batch * stride_grad_y_batch + head * stride_grad_y_head
    x += batch * stride_x_batch + head * stride_x_head
    if z is not None:
        z += batch * stride_z_batch + head * stride_z_head
    state_offset = ((batch * chunks + chunk) * heads + head) * HEADDIM * STATE
    products = tl.zeros((CHUNK, CHUNK), tl.float32)
    dC_tile = tl.zeros((CHUNK, BLOCK_N), tl.float32)
    dB_tile = tl.zeros((CHUNK, BLOCK_N), tl.float32)
    through = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, HEADDIM, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        grad = load_tile(
            grad_y,
            frames,
            p,
            stride_grad_y_length,
            stride_grad_y_p,
            length,
            HEADDIM,
        )
        if z is not None:
            z_tile = load_tile(
                z, frames, p, stride_z_length, stride_z_p, length, HEADDIM
            ).to(tl.float32)
            grad = grad.to(tl.float32) * z_tile * tl.sigmoid(z_tile)
        x_tile = load_tile(
            x, frames, p, stride_x_length, stride_x_p, length, HEADDIM
        )
        state = load_tile(
            states + state_offset, p, n, STATE, 1, HEADDIM, STATE
        )
        grad_state = load_tile(
            grad_states + state_offset, p, n, STATE, 1, HEADDIM, STATE
        )
        products = add_dot(
            products, grad, tl.trans(x_tile), OPERAND, UPCAST, PRECISION
        )
        dC_tile = add_dot(dC_tile, grad, state, OPERAND, UPCAST, PRECISION)
        dB_tile = add_dot(
            dB_tile, x_tile, grad_state, OPERAND, UPCAST, PRECISION
        )
        through += tl.sum(state * grad_state, 0)
    step = tl.load(steps + cell * CHUNK + inside)
    dC_tile *= decay_from_start(sums, segments, CHUNK)[:, None]
    dB_tile *= (decay_to_end(sums, segments, CHUNK) * step)[:, None]
    # (later frame, earlier frame)
    grad_scores = (
        decayed(products, sums, segments, CHUNK, False) * step[None, :]
    )
    B += batch * stride_B_batch + group * stride_B_group
    C += batch * stride_C_batch + group * stride_C_group
    B_tile = load_tile(
        B, frames, n, stride_B_length, stride_B_n, length, STATE
    )
    C_tile = load_tile(
        C, frames, n, stride_C_length, stride_C_n, length, STATE
    )

    from_state = tl.sum(dC_tile * C_tile.to(tl.float32), 1)
    to_state = tl.sum(dB_tile * B_tile.to(tl.float32), 1)
    offset = (batch * length * heads + head) * STATE
    stride_length = heads * STATE
    dC_tile = add_dot(dC_tile, grad_scores, B_tile, OPERAND, UPCAST, PRECISION)
    store_tile(
        dC + offset, dC_tile, frames, n, stride_length, 1, length, STATE
    )
    dB_tile = add_dot(
        dB_tile, tl.trans(grad_scores), C_tile, OPERAND, UPCAST, PRECISION
    )
    store_tile(
        dB + offset, dB_tile, frames, n, stride_length, 1, length, STATE
    )

    # The decay of frame k acts on everything that passes it: from the state
    # before the chunk to outputs at k or later, from frames before k to the
    # state after the chunk, from frames before k to outputs at k or later,
    # and from state to state. Each is summed as such; differences of running
    # sums would leave the rounding of what does not pass k.
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    scores = add_dot(
        scores, C_tile, tl.trans(B_tile), OPERAND, UPCAST, PRECISION
    )
    later = tl.cumsum(grad_scores * scores, 0, reverse=True)
    before = inside[None, :] < inside[:, None]
    passing = tl.sum(
        tl.where(before, later + to_state[None, :], from_state[None, :]), 1
    )
    passing += decay_of_chunk(sums, segments, CHUNK) * tl.sum(through, 0)
    grad_decay += (tl.program_id(1) * cells + cell) * CHUNK
    tl.store(grad_decay + inside, passing)
