"""The definition of the pole scan: one token after the other."""

import torch
from torch import Tensor


def pole_scan_step_reference(
    history: Tensor, eta: Tensor, q: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance by one token; all tensors in the working dtype.

    Args:
        history (Tensor): The last outputs, most recent first,
            ``(batch, order, channels)``.
        eta (Tensor): Input ``(batch, channels)``.
        q (Tensor): Coefficients ``(batch, groups, order)``.

    Returns:
        tuple[Tensor, Tensor]: Output ``(batch, channels)`` and new history.
    """
    q = q.repeat_interleave(eta.shape[-1] // q.shape[1], dim=1)
    y = eta - torch.einsum('bco,boc->bc', q, history)
    return y, torch.cat((y.unsqueeze(1), history[:, :-1]), dim=1)


def pole_scan_reference(
    eta: Tensor, q: Tensor, history: Tensor, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Scan token by token; all tensors in the working dtype.

    Args:
        eta (Tensor): ``(batch, length, channels)``, length at least 1.
        q (Tensor): ``(batch, length, groups, order)``.
        history (Tensor): ``(batch, order, channels)``, most recent first.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple[Tensor, Tensor]: Output like ``eta`` and the final history.
    """
    # Unbound once: a slice per token would cost a full-size zero tensor per
    # token in the backward pass.
    tokens = list(zip(eta.unbind(1), q.unbind(1), strict=True))
    outputs = []
    for eta_t, q_t in reversed(tokens) if reverse else tokens:
        y_t, history = pole_scan_step_reference(history, eta_t, q_t)
        outputs.append(y_t)
    if reverse:
        outputs.reverse()
    return torch.stack(outputs, dim=1), history
