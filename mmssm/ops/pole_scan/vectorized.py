"""The pole scan as a loop over tokens, with its adjoint (`torch` backend)."""

import torch
from torch import Tensor

from mmssm.ops.precision import working_dtype
from mmssm.ops.skip_and_gate import skip_and_gate, skip_and_gate_bwd


def pole_scan_fwd(
    eta: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan all tokens.

    Args:
        eta (Tensor): ``(batch, length, channels)``.
        q (Tensor): ``(batch, length, groups, order)``.
        x (Tensor, optional): Input of the skip, like ``eta``.
        D (Tensor, optional): Skip, ``(channels,)``.
        z (Tensor, optional): Gate, like ``eta``.
        initial_history (Tensor, optional): ``(batch, order, channels)``.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple: Output like ``eta``; final history; output of the recurrence
        before skip and gate, empty where that is the output itself.
    """
    dtype = working_dtype(eta.dtype)
    y = torch.empty_like(eta, dtype=dtype).copy_(eta)
    history = _initial_history(y, q, initial_history)
    _recur_(y, q.to(dtype), history, reverse)
    final_history = _last_outputs(y, history, reverse)
    if D is None and z is None:
        if y.dtype == eta.dtype:
            return y, final_history, eta.new_empty(0)
        return y.to(eta.dtype), final_history, y
    out = skip_and_gate(y, x, D, z, channel_dim=-1).to(eta.dtype)
    return out, final_history, y


def pole_scan_bwd(
    grad_out: Tensor,
    grad_final_history: Tensor,
    q: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_history: Tensor | None,
    y: Tensor,
    eta_dtype: torch.dtype,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    """Adjoint of `pole_scan_fwd`; see the README of this folder.

    Args:
        grad_out (Tensor): Gradient of the output.
        grad_final_history (Tensor): Gradient of the final history.
        q (Tensor): As in the forward pass, like the others.
        x (Tensor, optional): Input of the skip.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        initial_history (Tensor, optional): History before the first token.
        y (Tensor): Output of the recurrence.
        eta_dtype (torch.dtype): Dtype of the input.
        reverse (bool): Whether the last token was processed first.

    Returns:
        tuple: Gradients of eta, q, x, D, z and the initial history, in the
        dtypes of these; None where there is no such input.
    """
    dtype = y.dtype
    grad, *skip_grads = skip_and_gate_bwd(grad_out, y, x, D, z, -1)
    lam, grad_history = _adjoint(
        grad, grad_final_history.to(dtype), q.to(dtype), reverse
    )
    history = _initial_history(y, q, initial_history)
    grad_q = _coefficient_gradient(lam, y, history, q.shape[2], reverse)
    inputs = (x, D, z)
    return (
        lam.to(eta_dtype),
        grad_q.to(q.dtype),
        *(
            None if grad is None else grad.to(tensor.dtype)
            for grad, tensor in zip(skip_grads, inputs, strict=True)
        ),
        None
        if initial_history is None
        else grad_history.to(initial_history.dtype),
    )


def _initial_history(
    y: Tensor, q: Tensor, initial_history: Tensor | None
) -> Tensor:
    if initial_history is not None:
        return initial_history.to(y.dtype)
    return y.new_zeros(y.shape[0], q.shape[-1], y.shape[-1])


def _steps(length: int, reverse: bool) -> range:
    return range(length - 1, -1, -1) if reverse else range(length)


def _recur_(y: Tensor, q: Tensor, history: Tensor, reverse: bool) -> None:
    """Turn ``y``, which holds eta, into the output, in place."""
    groups = q.shape[2]
    tokens = y.unflatten(-1, (groups, -1)).unbind(1)
    past = list(history.unflatten(-1, (groups, -1)).unbind(1))
    # (order, batch, groups, 1) of every token
    taps = [token.unbind(0) for token in q.permute(1, 3, 0, 2)[..., None]]
    for t in _steps(len(tokens), reverse):
        y_t = tokens[t]
        # Most recent output last: fewer roundings follow the largest term.
        for tap, y_i in zip(reversed(taps[t]), reversed(past), strict=True):
            y_t.addcmul_(tap, y_i, value=-1)
        past = [y_t, *past[:-1]]


def _adjoint(
    grad: Tensor, grad_final_history: Tensor, q: Tensor, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Run the transposed form backwards: lam and the initial history's grad.

    lam_t = g_t + a_1, then a_j <- a_{j+1} - q_{t,j} lam_t.
    """
    groups = q.shape[2]
    lam = torch.empty_like(grad).copy_(grad)
    tokens = lam.unflatten(-1, (groups, -1)).unbind(1)
    pending = list(
        grad_final_history.clone().unflatten(-1, (groups, -1)).unbind(1)
    )
    taps = [token.unbind(0) for token in (-q).permute(1, 3, 0, 2)[..., None]]
    for t in _steps(len(tokens), not reverse):
        lam_t = tokens[t].add_(pending[0])
        for tap, a_next in zip(taps[t][:-1], pending[1:], strict=True):
            a_next.addcmul_(tap, lam_t)
        pending = [*pending[1:], taps[t][-1] * lam_t]
    return lam, torch.stack(pending, dim=1).flatten(-2)


def _coefficient_gradient(
    lam: Tensor, y: Tensor, history: Tensor, groups: int, reverse: bool
) -> Tensor:
    """d q_{t,i} = - sum over the channels of the group of lam_t y_{t-i}."""
    order, length = history.shape[1], y.shape[1]
    if reverse:
        outputs = torch.cat((y, history), dim=1)
        starts = range(1, order + 1)
    else:
        outputs = torch.cat((history.flip(1), y), dim=1)
        starts = range(order - 1, -1, -1)
    products = (
        (lam * outputs.narrow(1, start, length))
        .unflatten(-1, (groups, -1))
        .sum(-1)
        for start in starts
    )
    return torch.stack(list(products), dim=-1).neg_()


def _last_outputs(y: Tensor, history: Tensor, reverse: bool) -> Tensor:
    """Last ``order`` outputs, most recent first, as a new tensor."""
    order = history.shape[1]
    last = y[:, :order] if reverse else y[:, -order:].flip(1)
    return torch.cat((last, history), dim=1)[:, :order].contiguous()
