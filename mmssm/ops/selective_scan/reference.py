"""The definition of the selective scan: one token after the other."""

import torch
from torch import Tensor


def selective_scan_step_reference(
    state: Tensor, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance by one token; all tensors in the working dtype.

    Args:
        state (Tensor): ``(batch, dim, state)``.
        u (Tensor): ``(batch, dim)``.
        dt (Tensor): Final step size, ``(batch, dim)``.
        A (Tensor): ``(dim, state)``.
        B (Tensor): ``(batch, groups, state)``.
        C (Tensor): ``(batch, groups, state)``.

    Returns:
        tuple[Tensor, Tensor]: Output ``(batch, dim)`` and the new state.
    """
    channels_per_group = u.shape[1] // B.shape[1]
    B = B.repeat_interleave(channels_per_group, dim=1)
    C = C.repeat_interleave(channels_per_group, dim=1)
    decay = torch.exp(dt.unsqueeze(-1) * A)
    state = decay * state + (dt * u).unsqueeze(-1) * B
    return (state * C).sum(-1), state


def selective_scan_reference(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Scan token by token; all tensors in the working dtype.

    Args:
        u (Tensor): ``(batch, dim, length)``, length at least 1.
        dt (Tensor): Final step size, like ``u``.
        A (Tensor): ``(dim, state)``.
        B (Tensor): ``(batch, groups, state, length)``.
        C (Tensor): ``(batch, groups, state, length)``.
        state (Tensor): Initial state ``(batch, dim, state)``.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple[Tensor, Tensor]: Output like ``u`` and the final state.
    """
    # Unbound once: a slice per token would cost a full-size zero tensor per
    # token in the backward pass.
    tokens = list(zip(*(t.unbind(-1) for t in (u, dt, B, C)), strict=True))
    outputs = []
    for u_t, dt_t, B_t, C_t in reversed(tokens) if reverse else tokens:
        y_t, state = selective_scan_step_reference(
            state, u_t, dt_t, A, B_t, C_t
        )
        outputs.append(y_t)
    if reverse:
        outputs.reverse()
    return torch.stack(outputs, dim=-1), state
