"""The definition of the SSD recurrence: one frame after the other."""

import torch
import torch.nn.functional as F
from torch import Tensor


def ssd_step_reference(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
) -> tuple[Tensor, Tensor]:
    """Advance by one frame; all tensors in the working dtype.

    Args:
        state (Tensor): ``(batch, heads, headdim, state)``.
        x (Tensor): ``(batch, heads, headdim)``.
        dt (Tensor): Final step size, ``(batch, heads)``.
        A (Tensor): ``(heads,)``.
        B (Tensor): ``(batch, groups, state)``.
        C (Tensor): ``(batch, groups, state)``.

    Returns:
        tuple[Tensor, Tensor]: Output ``(batch, heads, headdim)`` and the new
        state.
    """
    heads_per_group = x.shape[1] // B.shape[1]
    B = B.repeat_interleave(heads_per_group, dim=1)
    C = C.repeat_interleave(heads_per_group, dim=1)
    decay = torch.exp(dt * A)
    state = torch.einsum('bh,bhpn->bhpn', decay, state) + torch.einsum(
        'bh,bhp,bhn->bhpn', dt, x, B
    )
    return torch.einsum('bhpn,bhn->bhp', state, C), state


def ssd_chunk_scan_reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None,
    changes: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Scan frame by frame; all tensors in the working dtype.

    Args:
        x (Tensor): ``(batch, length, heads, headdim)``, length at least 1.
        dt (Tensor): Final step size, ``(batch, length, heads)``.
        A (Tensor): ``(heads,)``.
        B (Tensor): ``(batch, length, groups, state)``.
        C (Tensor): ``(batch, length, groups, state)``.
        state (Tensor, optional): Initial state
            ``(batch, heads, headdim, state)``; None is zero.
        changes (Tensor, optional): See `sequence_changes`.

    Returns:
        tuple[Tensor, Tensor]: Output like ``x`` and the final state.
    """
    outputs = []
    if state is None:
        state = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1])
    if changes is None:
        resets = [None] * x.shape[1]
    else:
        resets = changes[..., None, None, None].unbind(1)
    # Unbound once: a slice per frame would cost a full-size zero tensor per
    # frame in the backward pass.
    frames = zip(*(t.unbind(1) for t in (x, dt, B, C)), resets, strict=True)
    for x_t, dt_t, B_t, C_t, reset in frames:
        if reset is not None:
            state = state.masked_fill(reset, 0)
        y_t, state = ssd_step_reference(state, x_t, dt_t, A, B_t, C_t)
        outputs.append(y_t)
    return torch.stack(outputs, dim=1), state


def sequence_changes(seq_idx: Tensor | None) -> Tensor | None:
    """Where a new sequence starts: bool ``(batch, length)``.

    False for the first frame, which continues the initial state.
    """
    if seq_idx is None:
        return None
    changes = seq_idx != seq_idx.roll(1, dims=1)
    changes[:, :1] = False
    return changes


def step_size(
    dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dtype: torch.dtype
) -> Tensor:
    """Final step size in ``dtype``: softplus(dt + dt_bias) as asked."""
    dt = dt.to(dtype)
    if dt_bias is not None:
        dt = dt + dt_bias.to(dtype)
    return F.softplus(dt) if dt_softplus else dt


def skip_and_gate(
    y: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None
) -> Tensor:
    """Add the skip ``D x`` and multiply by ``silu(z)``, in the dtype of y."""
    if D is not None:
        D = D.to(y.dtype)
        y = y + x * (D.unsqueeze(-1) if D.ndim == 1 else D)
    return y if z is None else y * F.silu(z.to(y.dtype))
