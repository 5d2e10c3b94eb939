"""Forward kernels of the SSD recurrence; the backward pass runs them too.

The constants are explained in ``ssd_chunk_scan_tiles``.
"""

import triton
import triton.language as tl

from mmssm.kernels.triton.launch import autotune, over_warps
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
    softplus,
    store_tile,
)


# Not tuned: a program has few elements, whatever the number of warps.
@triton.jit
def _ssd_chunk_scan_fwd_kernel_decay(
    dt, dt_bias, A, steps, sums,
    stride_dt_batch, stride_dt_length, stride_dt_head,
    length, heads, chunks,
    CHUNK: tl.constexpr, BLOCK_H: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Final step sizes, and the running sums of the log decay per chunk.

    Both have shape (batch, heads, chunks, CHUNK). Frames behind the last one
    get step size 0: they neither decay nor feed the state.
    """
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    inside = tl.arange(0, CHUNK)
    frames = chunk * CHUNK + inside
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = head < heads
    dt += batch * stride_dt_batch
    step = load_tile(
        dt, frames, head, stride_dt_length, stride_dt_head, length, heads
    ).to(tl.float32)
    if dt_bias is not None:
        step += tl.load(dt_bias + head, mask=is_head, other=0.0)[None, :]
    if SOFTPLUS:
        step = softplus(step)
    step = tl.where((frames < length)[:, None], step, 0.0)
    rate = tl.load(A + head, mask=is_head, other=0.0)
    log_decay = step * rate[None, :]
    # exp(-110) is 0 in float32. Anything below would only take digits from
    # the differences of running sums, or make them inf - inf.
    log_decay = tl.where(log_decay < -110.0, -110.0, log_decay)
    running = tl.cumsum(log_decay, 0)
    stride_head = chunks.to(tl.int64) * CHUNK
    offset = (batch * heads * chunks + chunk) * CHUNK
    store_tile(
        steps + offset, step, inside, head, 1, stride_head, CHUNK, heads
    )
    store_tile(
        sums + offset, running, inside, head, 1, stride_head, CHUNK, heads
    )


@autotune(over_warps(8, 4, stages=2), key=TUNING_KEY)
@triton.jit
def _ssd_chunk_scan_fwd_kernel_states(
    left, gate, right, steps, sums, segments, states,
    stride_left_batch, stride_left_length, stride_left_head, stride_left_p,
    stride_gate_batch, stride_gate_length, stride_gate_head, stride_gate_p,
    stride_right_batch, stride_right_length, stride_right_group, stride_right_n,
    length, heads, chunks, heads_per_group,
    HEADDIM: tl.constexpr, STATE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    ADJOINT: tl.constexpr, OPERAND: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What the frames of each chunk add to a state: left^T weights right.

    Forward, ``left`` is x and ``right`` B, and the state is that at the end
    of the chunk. ``ADJOINT``: ``left`` is the gradient of the output, before
    the ``gate`` if there is one, ``right`` is C, and the result belongs to
    the gradient of the state at the start of the chunk.
    """
    batch, chunk, head, group = locate(heads, chunks, heads_per_group)
    cell = (batch * heads + head) * chunks + chunk
    sums += cell * CHUNK
    if segments is not None:
        segments += batch * (chunks * CHUNK + 1) + chunk * CHUNK
    tiles_n: tl.constexpr = (STATE + BLOCK_N - 1) // BLOCK_N
    p = tl.program_id(1) // tiles_n * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.program_id(1) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = tl.arange(0, CHUNK)
    frames = chunk * CHUNK + inside
    if ADJOINT:
        weights = decay_from_start(sums, segments, CHUNK)
    else:
        weights = decay_to_end(sums, segments, CHUNK) * tl.load(
            steps + cell * CHUNK + inside
        )
    left += batch * stride_left_batch + head * stride_left_head
    left_tile = load_tile(
        left, frames, p, stride_left_length, stride_left_p, length, HEADDIM
    ).to(tl.float32)
    if gate is not None:
        gate += batch * stride_gate_batch + head * stride_gate_head
        z = load_tile(
            gate, frames, p, stride_gate_length, stride_gate_p, length, HEADDIM
        ).to(tl.float32)
        left_tile *= z * tl.sigmoid(z)
    right += batch * stride_right_batch + group * stride_right_group
    right_tile = load_tile(
        right, frames, n, stride_right_length, stride_right_n, length, STATE
    )
    acc = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    weighted = tl.trans(left_tile * weights[:, None])
    acc = add_dot(acc, weighted, right_tile, OPERAND, UPCAST, PRECISION)
    states += ((batch * chunks + chunk) * heads + head) * HEADDIM * STATE
    store_tile(states, acc, p, n, STATE, 1, HEADDIM, STATE)


# Not tuned: it works in place.
@triton.jit
def _ssd_chunk_scan_fwd_kernel_pass(
    states, first, last, sums, segments, heads, chunks,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Carry states through the chunks, the only sequential part.

    In place: what a chunk adds is replaced by the state carried into it.
    ``REVERSE`` starts at the last chunk. ``SIZE`` is the number of elements
    of a state, of which a program handles ``BLOCK``.
    """
    batch = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = index < SIZE
    cell = batch * heads + head
    state = tl.zeros((BLOCK,), tl.float32)
    if first is not None:
        state += tl.load(first + cell * SIZE + index, mask=mask, other=0.0)
    step: tl.constexpr = -1 if REVERSE else 1
    chunk = chunks - 1 if REVERSE else chunks * 0
    states += (batch * chunks * heads + head) * SIZE + index
    stride_chunk = heads.to(tl.int64) * SIZE
    added = tl.load(states + chunk * stride_chunk, mask=mask, other=0.0)
    for _ in range(chunks):
        # Loaded one chunk ahead: the next turn need not wait for it.
        following = chunk + step
        exists = (following >= 0) & (following < chunks)
        next_added = tl.load(
            states + following * stride_chunk, mask=mask & exists, other=0.0
        )
        tl.store(states + chunk * stride_chunk, state, mask=mask)
        at_chunk = None
        if segments is not None:
            at_chunk = segments + batch * (chunks * CHUNK + 1) + chunk * CHUNK
        decay = decay_of_chunk(
            sums + (cell * chunks + chunk) * CHUNK, at_chunk, CHUNK
        )
        state = state * decay + added
        added = next_added
        chunk = following
    if last is not None:
        tl.store(last + cell * SIZE + index, state, mask=mask)


@autotune(matrix_configs(2, 1), key=TUNING_KEY, fits=is_pipelined)
@triton.jit
def _ssd_chunk_scan_fwd_kernel_output(
    x, B, C, D, z, steps, sums, segments, states, grad_y, out,
    stride_x_batch, stride_x_length, stride_x_head, stride_x_p,
    stride_B_batch, stride_B_length, stride_B_group, stride_B_n,
    stride_C_batch, stride_C_length, stride_C_group, stride_C_n,
    stride_D_head, stride_D_p,
    stride_z_batch, stride_z_length, stride_z_head, stride_z_p,
    stride_grad_y_batch, stride_grad_y_length, stride_grad_y_head, stride_grad_y_p,
    stride_out_batch, stride_out_length, stride_out_head, stride_out_p,
    length, heads, chunks, heads_per_group,
    HEADDIM: tl.constexpr, STATE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    OPERAND: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output from the frames of the chunk and from the state before it.

    With ``grad_y``, the gradient of the gate ``z`` is written instead.
    """
    batch, chunk, head, group = locate(heads, chunks, heads_per_group)
    cell = (batch * heads + head) * chunks + chunk
    sums += cell * CHUNK
    if segments is not None:
        segments += batch * (chunks * CHUNK + 1) + chunk * CHUNK
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = tl.arange(0, CHUNK)
    frames = chunk * CHUNK + inside
    B += batch * stride_B_batch + group * stride_B_group
    C += batch * stride_C_batch + group * stride_C_group
    states += ((batch * chunks + chunk) * heads + head) * HEADDIM * STATE
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    acc = tl.zeros((CHUNK, BLOCK_P), tl.float32)
    for start in range(0, STATE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        C_tile = load_tile(
            C, frames, n, stride_C_length, stride_C_n, length, STATE
        )
        B_tile = load_tile(
            B, n, frames, stride_B_n, stride_B_length, STATE, length
        )
        state = load_tile(states, n, p, 1, STATE, STATE, HEADDIM)
        scores = add_dot(scores, C_tile, B_tile, OPERAND, UPCAST, PRECISION)
        acc = add_dot(acc, C_tile, state, OPERAND, UPCAST, PRECISION)
    acc *= decay_from_start(sums, segments, CHUNK)[:, None]
    mixing = decayed(scores, sums, segments, CHUNK, False)
    mixing *= tl.load(steps + cell * CHUNK + inside)[None, :]
    x += batch * stride_x_batch + head * stride_x_head
    x_tile = load_tile(
        x, frames, p, stride_x_length, stride_x_p, length, HEADDIM
    )
    acc = add_dot(acc, mixing, x_tile, OPERAND, UPCAST, PRECISION)
    if D is not None:
        skip = tl.load(
            D + head * stride_D_head + p * stride_D_p,
            mask=p < HEADDIM,
            other=0.0,
        )
        acc += x_tile.to(tl.float32) * skip[None, :]
    if z is not None:
        z += batch * stride_z_batch + head * stride_z_head
        z_tile = load_tile(
            z, frames, p, stride_z_length, stride_z_p, length, HEADDIM
        ).to(tl.float32)
        sigmoid = tl.sigmoid(z_tile)
        if grad_y is not None:
            grad_y += batch * stride_grad_y_batch + head * stride_grad_y_head
            grad = load_tile(
                grad_y,
                frames,
                p,
                stride_grad_y_length,
                stride_grad_y_p,
                length,
                HEADDIM,
            )
            acc *= (
                grad.to(tl.float32)
                * sigmoid
                * (1.0 + z_tile * (1.0 - sigmoid))
            )
        else:
            acc *= z_tile * sigmoid
    out += batch * stride_out_batch + head * stride_out_head
    store_tile(
        out, acc, frames, p, stride_out_length, stride_out_p, length, HEADDIM
    )
