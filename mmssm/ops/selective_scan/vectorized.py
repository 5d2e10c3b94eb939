"""The selective scan as a loop over tokens (`torch` backend).

Only the states at the start of every chunk are kept; the adjoint, written by
hand, recomputes those in between.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmssm.ops.precision import working_dtype
from mmssm.ops.selective_scan.checkpoints import CHECKPOINT_EVERY
from mmssm.ops.selective_scan.step_size import step_size, step_size_bwd
from mmssm.ops.skip_and_gate import skip_and_gate, skip_and_gate_bwd


@dataclass
class _Tokens:
    """Inputs by token, in order of time, channels split into groups.

    Attributes:
        dt (tuple[Tensor]): Final step sizes, each ``(batch, groups, width)``.
        dt_u (tuple[Tensor]): dt u, each like ``dt``.
        B (tuple[Tensor]): Each ``(batch, groups, state)``.
        C (tuple[Tensor]): Each ``(batch, groups, state)``.
        A (Tensor): ``(groups, width, state)``.
    """

    dt: tuple[Tensor, ...]
    dt_u: tuple[Tensor, ...]
    B: tuple[Tensor, ...]
    C: tuple[Tensor, ...]
    A: Tensor

    @classmethod
    def of(
        cls, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
    ) -> '_Tokens':
        dtype, groups = dt.dtype, B.shape[1]
        dt_u = dt * u.to(dtype)
        return cls(
            dt.unflatten(1, (groups, -1)).unbind(-1),
            dt_u.unflatten(1, (groups, -1)).unbind(-1),
            B.to(dtype).unbind(-1),
            C.to(dtype).unbind(-1),
            A.to(dtype).unflatten(0, (groups, -1)),
        )

    def decay(self, t: int) -> Tensor:
        """Decay of the state at token t, ``(batch, groups, width, state)``."""
        return torch.exp_(self.dt[t].unsqueeze(-1) * self.A)

    def feed(self, t: int, decayed: Tensor) -> Tensor:
        """Add the input of token t to the decayed state, in place."""
        return decayed.addcmul_(
            self.dt_u[t].unsqueeze(-1), self.B[t].unsqueeze(-2)
        )

    def read(self, t: int, state: Tensor) -> Tensor:
        """Output of token t, ``(batch, groups, width)``."""
        return torch.matmul(state, self.C[t].unsqueeze(-1)).squeeze(-1)


def selective_scan_fwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan all tokens.

    Args:
        u (Tensor): ``(batch, dim, length)``.
        delta (Tensor): Like ``u``.
        A (Tensor): ``(dim, state)``.
        B (Tensor): ``(batch, groups, state, length)``.
        C (Tensor): Like ``B``.
        D (Tensor, optional): ``(dim,)``.
        z (Tensor, optional): Like ``u``.
        delta_bias (Tensor, optional): ``(dim,)``.
        initial_state (Tensor, optional): ``(batch, dim, state)``.
        delta_softplus (bool): Whether softplus is applied to the step size.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple: Output like ``u``; final state; states before the first
        processed token of every chunk, ``(batch, chunks, dim, state)``.
    """
    dtype = working_dtype(u.dtype)
    dt = step_size(delta.to(dtype), delta_bias, delta_softplus)
    tokens = _Tokens.of(u, dt, A, B, C)
    if initial_state is None:
        state = u.new_zeros(*u.shape[:2], A.shape[1], dtype=dtype)
    else:
        state = initial_state.to(dtype, copy=True)
    state = state.contiguous().unflatten(1, (B.shape[1], -1))
    y = torch.empty_like(u, dtype=dtype)
    outputs = y.unflatten(1, (B.shape[1], -1)).unbind(-1)
    checkpoints = []
    for chunk in _chunks(u.shape[-1], reverse):
        checkpoints.append(state.clone())
        for t in chunk:
            tokens.feed(t, state.mul_(tokens.decay(t)))
            outputs[t].copy_(tokens.read(t, state))
    out = skip_and_gate(y, u, D, z, channel_dim=-2).to(u.dtype)
    checkpoints = torch.stack(checkpoints, dim=1).flatten(2, 3)
    return out, state.flatten(1, 2), checkpoints


def selective_scan_bwd(
    grad_y: Tensor,
    grad_last_state: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    checkpoints: Tensor,
    delta_softplus: bool,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    """Adjoint of `selective_scan_fwd`; see the README of this folder.

    Args:
        grad_y (Tensor): Gradient of the output.
        grad_last_state (Tensor): Gradient of the final state.
        u (Tensor): As in the forward pass, like the others.
        delta (Tensor): Step sizes.
        A (Tensor): Decay rates.
        B (Tensor): Input matrices.
        C (Tensor): Output matrices.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        delta_bias (Tensor, optional): Bias of the step size.
        checkpoints (Tensor): What the forward pass kept.
        delta_softplus (bool): Whether softplus was applied.
        reverse (bool): Whether the last token was processed first.

    Returns:
        tuple: Gradients of u, delta, A, B, C, D, z and delta_bias, in the
        dtypes of these, None where there is no such input, and of the
        initial state.
    """
    dtype, groups = working_dtype(u.dtype), B.shape[1]
    u_work = u.to(dtype)
    dt = step_size(delta.to(dtype), delta_bias, delta_softplus)
    tokens = _Tokens.of(u_work, dt, A, B, C)
    checkpoints = checkpoints.unflatten(2, (groups, -1))
    grad = grad_y.to(dtype)
    skip_grads = (None, None, None)
    if D is not None or z is not None:
        y = _replay_outputs(tokens, checkpoints, u_work, reverse)
        grad, *skip_grads = skip_and_gate_bwd(grad, y, u_work, D, z, -2)
    lam = grad_last_state.to(dtype, copy=True).unflatten(1, (groups, -1))
    gradients = _adjoint(tokens, checkpoints, grad, lam, reverse)
    grad_dt, grad_dt_u, grad_A, grad_B, grad_C = gradients
    grad_skip_u, grad_D, grad_z = skip_grads
    grad_u = grad_dt_u * dt
    if grad_skip_u is not None:
        grad_u = grad_u + grad_skip_u
    grad_delta = step_size_bwd(
        grad_dt + grad_dt_u * u_work,
        delta.to(dtype),
        delta_bias,
        delta_softplus,
    )
    grad_bias = None if delta_bias is None else grad_delta.sum((0, 2))
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    gradients = (
        grad_u,
        grad_delta,
        grad_A,
        grad_B,
        grad_C,
        grad_D,
        grad_z,
        grad_bias,
    )
    return (
        *(
            None if tensor is None else torch.empty_like(tensor).copy_(grad)
            for tensor, grad in zip(inputs, gradients, strict=True)
        ),
        lam.flatten(1, 2),
    )


def _chunks(length: int, reverse: bool) -> list[range]:
    """Tokens of every chunk, in the order they are processed."""
    steps = range(length)
    if reverse:
        steps = steps[::-1]
    starts = range(0, length, CHECKPOINT_EVERY)
    return [steps[start : start + CHECKPOINT_EVERY] for start in starts]


def _replay_outputs(
    tokens: _Tokens, checkpoints: Tensor, u: Tensor, reverse: bool
) -> Tensor:
    """Outputs of the recurrence, ``(batch, dim, length)``."""
    y = torch.empty_like(u)
    outputs = y.unflatten(1, (checkpoints.shape[2], -1)).unbind(-1)
    chunks = _chunks(u.shape[-1], reverse)
    for chunk, start in zip(chunks, checkpoints.unbind(1), strict=True):
        state = start.clone()
        for t in chunk:
            tokens.feed(t, state.mul_(tokens.decay(t)))
            outputs[t].copy_(tokens.read(t, state))
    return y


def _adjoint(
    tokens: _Tokens,
    checkpoints: Tensor,
    grad: Tensor,
    lam: Tensor,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Run the recurrence backwards.

    Args:
        tokens (_Tokens): Inputs.
        checkpoints (Tensor): ``(batch, chunks, groups, width, state)``.
        grad (Tensor): Gradient of the recurrence's output,
            ``(batch, dim, length)``.
        lam (Tensor): Gradient of the final state; becomes that of the
            initial one.
        reverse (bool): Whether the last token was processed first.

    Returns:
        tuple: Gradients of dt, dt u, A, B and C.
    """
    length, groups = grad.shape[-1], lam.shape[1]
    grads = grad.unflatten(1, (groups, -1)).unbind(-1)
    grad_A = torch.zeros_like(lam)
    by_token: list[tuple[Tensor, ...]] = [()] * length
    chunks = _chunks(length, reverse)
    for chunk, start in zip(
        reversed(chunks), reversed(checkpoints.unbind(1)), strict=True
    ):
        decays, states = _replay_states(tokens, chunk, start)
        for step in range(len(chunk) - 1, -1, -1):
            t = chunk[step]
            lam.addcmul_(grads[t].unsqueeze(-1), tokens.C[t].unsqueeze(-2))
            grad_C = grads[t].unsqueeze(-2) @ states[step + 1]
            grad_B = tokens.dt_u[t].unsqueeze(-2) @ lam
            grad_dt_u = lam @ tokens.B[t].unsqueeze(-1)
            lam.mul_(decays[step])
            grad_log_decay = lam * states[step]
            grad_A.addcmul_(grad_log_decay, tokens.dt[t].unsqueeze(-1))
            grad_dt = grad_log_decay.mul_(tokens.A).sum(-1)
            by_token[t] = (
                grad_dt,
                grad_dt_u.squeeze(-1),
                grad_B.squeeze(-2),
                grad_C.squeeze(-2),
            )
    grad_dt, grad_dt_u, grad_B, grad_C = (
        torch.stack(column, dim=-1) for column in zip(*by_token, strict=True)
    )
    return (
        grad_dt.flatten(1, 2),
        grad_dt_u.flatten(1, 2),
        grad_A.sum(0).flatten(0, 1),
        grad_B,
        grad_C,
    )


def _replay_states(
    tokens: _Tokens, chunk: range, start: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Decays of a chunk's tokens; the states before and after each."""
    decays, states = [], [start]
    for t in chunk:
        decay = tokens.decay(t)
        decays.append(decay)
        states.append(tokens.feed(t, states[-1] * decay))
    return decays, states
