"""The SSD recurrence chunk by chunk (`torch` backend)."""

import torch
from torch import Tensor

from mmssm.ops.precision import working_dtype
from mmssm.ops.ssd_chunk_scan.adjoint import ssd_chunk_scan_bwd
from mmssm.ops.ssd_chunk_scan.inside import (
    inside_chunks,
    join_chunks,
    read_states,
    split_chunks,
)
from mmssm.ops.ssd_chunk_scan.reference import (
    sequence_changes,
    skip_and_gate,
    step_size,
)

__all__ = [
    'ssd_chunk_scan_bwd',
    'ssd_chunk_scan_fwd',
    'ssd_chunk_scan_torch',
    'ssd_step_torch',
]


def ssd_step_torch(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
) -> tuple[Tensor, Tensor]:
    """Advance by one frame; arguments as in `ssd_step_reference`."""
    heads, groups = x.shape[1], B.shape[1]
    if groups not in (1, heads):
        B = B.repeat_interleave(heads // groups, dim=1)
        C = C.repeat_interleave(heads // groups, dim=1)
    decay = torch.exp(dt * A)[..., None, None]
    update = (x * dt.unsqueeze(-1)).unsqueeze(-1) * B.unsqueeze(-2)
    state = torch.addcmul(update, state, decay)
    return torch.matmul(state, C.unsqueeze(-1)).squeeze(-1), state


def ssd_chunk_scan_torch(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None,
    changes: Tensor | None,
    chunk_size: int,
    return_final_states: bool,
) -> tuple[Tensor, Tensor | None]:
    """Scan chunk by chunk; all tensors in the working dtype.

    Args:
        x (Tensor): ``(batch, length, heads, headdim)``, length at least 1.
        dt (Tensor): Final step size, ``(batch, length, heads)``.
        A (Tensor): ``(heads,)``.
        B (Tensor): ``(batch, length, groups, state)``.
        C (Tensor): ``(batch, length, groups, state)``.
        state (Tensor, optional): Initial state
            ``(batch, heads, headdim, state)``; None is zero.
        changes (Tensor, optional): See `sequence_changes`.
        chunk_size (int): Frames per chunk.
        return_final_states (bool): Whether the final state is wanted.

    Returns:
        tuple[Tensor, Tensor or None]: Output like ``x`` and the final state,
        None unless wanted.
    """
    batch, length, heads, headdim = x.shape
    if length == 1:
        if state is None:
            state = x.new_zeros(batch, heads, headdim, B.shape[-1])
        x, dt, B, C = (t.squeeze(1) for t in (x, dt, B, C))
        y, state = ssd_step_torch(state, x, dt, A, B, C)
        return y.unsqueeze(1), state
    log_decay = dt * A
    if length <= chunk_size:
        return _one_chunk(
            x, dt, log_decay, B, C, state, changes, return_final_states
        )
    y, state, _ = _many_chunks(
        x, dt, log_decay, B, C, state, changes, chunk_size
    )
    return y, state if return_final_states else None


def ssd_chunk_scan_fwd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    chunk_size: int,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan without autograd; arguments as in `ssd_chunk_scan`.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Output like ``x``; final state; state
        before every chunk, ``(batch, chunks, heads, headdim, state)``.
    """
    dtype = working_dtype(x.dtype)
    x_work = x.to(dtype)
    step = step_size(dt, dt_bias, dt_softplus, dtype)
    y, state, starts = _many_chunks(
        x_work,
        step,
        step * A.to(dtype),
        B.to(dtype),
        C.to(dtype),
        None if initial_states is None else initial_states.to(dtype),
        sequence_changes(seq_idx),
        min(chunk_size, x.shape[1]),
    )
    y = skip_and_gate(y, x_work, D, z)
    return torch.empty_like(x).copy_(y), state, starts


def _many_chunks(
    x: Tensor,
    dt: Tensor,
    log_decay: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None,
    changes: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the state before every chunk."""
    batch, length, heads = x.shape[:3]
    x, dt, log_decay, B, C = (
        split_chunks(t, chunk_size) for t in (x, dt, log_decay, B, C)
    )
    if changes is not None:
        changes = split_chunks(changes, chunk_size)
    y, update, from_start, total = inside_chunks(
        x, dt, log_decay, B, C, changes, True
    )
    # The only sequential part.
    update = update.unflatten(0, (batch, -1))
    total = total.view(batch, -1, heads, 1, 1)
    if state is None:
        state = torch.zeros_like(update[:, 0])
    starts = []
    for added, decay in zip(update.unbind(1), total.unbind(1), strict=True):
        starts.append(state)
        state = torch.addcmul(added, state, decay)
    starts = torch.stack(starts, 1)
    y = y + read_states(starts.flatten(0, 1), C, from_start)
    return join_chunks(y, batch, length), state, starts


def _one_chunk(
    x: Tensor,
    dt: Tensor,
    log_decay: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None,
    changes: Tensor | None,
    return_final_states: bool,
) -> tuple[Tensor, Tensor | None]:
    y, update, from_start, total = inside_chunks(
        x, dt, log_decay, B, C, changes, return_final_states
    )
    if state is not None:
        y = y + read_states(state, C, from_start)
        if return_final_states:
            update = torch.addcmul(update, state, total[..., None, None])
    return y, update
