"""The selective scan as a loop over tokens (`torch` backend).

Only the states at the start of every chunk are kept; the adjoint, written by
hand, recomputes those in between. All that is not the recurrence itself is
computed for a block of tokens at once, as many as fit the cache: of the loop
one fused multiply-add per token remains.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmssm.ops.precision import working_dtype
from mmssm.ops.selective_scan.checkpoints import CHECKPOINT_EVERY
from mmssm.ops.selective_scan.step_size import step_size, step_size_bwd
from mmssm.ops.skip_and_gate import skip_and_gate, skip_and_gate_bwd

# Numbers in one tensor of a block: a few of these fit a second-level cache.
_BLOCK_NUMBERS = 2**18


@dataclass
class _Tokens:
    """Inputs in order of time, one token after the other in memory.

    Attributes:
        dt (Tensor): Final step sizes, ``(length, batch, groups, width)``.
        dt_u (Tensor): dt u, like ``dt``.
        B (Tensor): ``(length, batch, groups, state)``.
        C (Tensor): ``(length, batch, groups, state)``.
        A (Tensor): ``(groups, width, state)``.
    """

    dt: Tensor
    dt_u: Tensor
    B: Tensor
    C: Tensor
    A: Tensor

    @classmethod
    def of(
        cls, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
    ) -> '_Tokens':
        dtype, groups = dt.dtype, B.shape[1]
        return cls(
            _by_token(dt, groups),
            _by_token(dt * u.to(dtype), groups),
            B.to(dtype).permute(3, 0, 1, 2).contiguous(),
            C.to(dtype).permute(3, 0, 1, 2).contiguous(),
            A.to(dtype).unflatten(0, (groups, -1)),
        )

    def block_size(self) -> int:
        """Tokens whose states fit the cache."""
        return max(1, _BLOCK_NUMBERS // (self.dt[0].numel() * self.state))

    @property
    def state(self) -> int:
        """Size of the state of a channel."""
        return self.A.shape[-1]

    def decays(self, block: slice, out: Tensor) -> Tensor:
        """Decays of a block, ``(tokens, batch, groups, width, state)``."""
        return torch.mul(self.dt[block].unsqueeze(-1), self.A, out=out).exp_()

    def feeds(self, block: slice, out: Tensor) -> Tensor:
        """What the tokens of a block add to the state, like `decays`."""
        dt_u, B = self.dt_u[block].unsqueeze(-1), self.B[block].unsqueeze(-2)
        return torch.mul(dt_u, B, out=out)

    def scratch(self, tokens: int) -> Tensor:
        """Memory for the states of some tokens."""
        _, batch, groups, width = self.dt.shape
        return self.dt.new_empty(tokens, batch, groups, width, self.state)

    def read(self, block: slice, states: Tensor) -> Tensor:
        """Outputs of a block, ``(tokens, batch, groups, width)``."""
        return torch.matmul(states, self.C[block].unsqueeze(-1)).squeeze(-1)


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
    dtype, groups = working_dtype(u.dtype), B.shape[1]
    dt = step_size(delta.to(dtype), delta_bias, delta_softplus)
    tokens = _Tokens.of(u, dt, A, B, C)
    if initial_state is None:
        state = u.new_zeros(*u.shape[:2], A.shape[1], dtype=dtype)
    else:
        state = initial_state.to(dtype)
    state = state.contiguous().unflatten(1, (groups, -1))
    y = torch.empty_like(tokens.dt)
    checkpoints = []
    size = tokens.block_size()
    decays, states = tokens.scratch(size), tokens.scratch(size + 1)
    for chunk in _parts(range(u.shape[-1]), CHECKPOINT_EVERY, reverse):
        checkpoints.append(state)
        for block in _parts(chunk, size, reverse):
            here = _slice(block)
            run = states[: len(block) + 1]
            _run_(tokens, here, state, decays[: len(block)], run, reverse)
            y[here] = tokens.read(here, _after(run, reverse))
            state = run[0 if reverse else -1].clone()
    y = _by_channel(y, like=u)
    out = skip_and_gate(y, u, D, z, channel_dim=-2).to(u.dtype)
    return (
        out,
        state.flatten(1, 2),
        torch.stack(checkpoints, dim=1).flatten(2, 3),
    )


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
    dt = step_size(delta.to(dtype), delta_bias, delta_softplus)
    tokens = _Tokens.of(u, dt, A, B, C)
    grad_y = grad_y.to(dtype)
    grad = grad_y if z is None else grad_y * F.silu(z.to(dtype))
    lam = grad_last_state.to(dtype).unflatten(1, (groups, -1))
    y, grad_dt, grad_dt_u, grad_A, grad_B, grad_C, lam = _adjoint(
        tokens,
        checkpoints.unflatten(2, (groups, -1)),
        _by_token(grad, groups),
        lam,
        reverse,
        with_output=z is not None,
    )
    y, grad_dt, grad_dt_u = (
        _by_channel(t, like=u) for t in (y, grad_dt, grad_dt_u)
    )
    _, grad_skip_u, grad_D, grad_z = skip_and_gate_bwd(grad_y, y, u, D, z, -2)
    grad_u = grad_dt_u * dt
    if grad_skip_u is not None:
        grad_u = grad_u + grad_skip_u
    grad_delta = step_size_bwd(
        grad_dt + grad_dt_u * u.to(dtype),
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
        grad_B.permute(1, 2, 3, 0),
        grad_C.permute(1, 2, 3, 0),
        grad_D,
        grad_z,
        grad_bias,
    )
    return (
        *(
            None if tensor is None else gradient.to(tensor.dtype)
            for tensor, gradient in zip(inputs, gradients, strict=True)
        ),
        lam.flatten(1, 2),
    )


def _by_token(t: Tensor, groups: int) -> Tensor:
    """Lay ``(batch, dim, length)`` out as (length, batch, groups, width).

    A step of the loop then reads memory in a row, whatever the layout was.
    """
    return t.unflatten(1, (groups, -1)).permute(3, 0, 1, 2).contiguous()


def _by_channel(t: Tensor, like: Tensor) -> Tensor:
    """Undo `_by_token`, in the memory layout of ``like``."""
    t = t.flatten(2, 3).permute(1, 2, 0)
    return torch.empty_like(like, dtype=t.dtype).copy_(t)


def _parts(tokens: range, size: int, reverse: bool) -> list[range]:
    """Cut tokens into parts, in the order they are processed.

    With ``reverse`` the last token is processed first, so that the part that
    is not full has the first tokens.
    """
    count = len(tokens)
    starts = range(0, count, size)
    if reverse:
        return [tokens[max(count - s - size, 0) : count - s] for s in starts]
    return [tokens[s : s + size] for s in starts]


def _slice(block: range, start: int = 0) -> slice:
    """Place of a block among tokens that begin with ``start``."""
    return slice(block.start - start, block.stop - start)


def _steps(count: int, reverse: bool) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def _run_(
    tokens: _Tokens,
    where: slice,
    start: Tensor,
    decays: Tensor,
    states: Tensor,
    reverse: bool,
) -> None:
    """Compute the states before, between and after the tokens of a block.

    Args:
        tokens (_Tokens): Inputs.
        where (slice): The block.
        start (Tensor): State before the first processed token.
        decays (Tensor): Filled: ``(tokens, *start.shape)``, in order of time.
        states (Tensor): Filled: ``(tokens + 1, *start.shape)``, in order of
            time: ``start`` comes first, with ``reverse`` last.
        reverse (bool): Whether the last token is processed first.
    """
    tokens.decays(where, out=decays)
    # What a token adds lies where the state after it will be.
    tokens.feeds(where, out=_after(states, reverse))
    slots, factors = states.unbind(0), decays.unbind(0)
    before, after = (slots[1:], slots) if reverse else (slots, slots[1:])
    slots[-1 if reverse else 0].copy_(start)
    for t in _steps(len(factors), reverse):
        after[t].addcmul_(before[t], factors[t])


def _after(states: Tensor, reverse: bool) -> Tensor:
    """States after each token, of those that `_run_` computes."""
    return states[:-1] if reverse else states[1:]


def _before(states: Tensor, reverse: bool) -> Tensor:
    """States before each token, of those that `_run_` computes."""
    return states[1:] if reverse else states[:-1]


def _adjoint(
    tokens: _Tokens,
    checkpoints: Tensor,
    grad: Tensor,
    lam: Tensor,
    reverse: bool,
    with_output: bool,
) -> tuple[Tensor, ...]:
    """Run the recurrence backwards.

    Args:
        tokens (_Tokens): Inputs.
        checkpoints (Tensor): ``(batch, chunks, groups, width, state)``.
        grad (Tensor): Gradient of the recurrence's output,
            ``(length, batch, groups, width)``.
        lam (Tensor): Gradient of the final state.
        reverse (bool): Whether the last token was processed first.
        with_output (bool): Whether the recurrence's output is wanted, which
            only the gradient of a gate needs.

    Returns:
        tuple: The recurrence's output (else zeros) and the gradients of dt,
        dt u, A, B and C by token, and that of the initial state.
    """
    y = torch.zeros_like(grad)
    grad_dt, grad_dt_u = torch.empty_like(grad), torch.empty_like(grad)
    grad_A = torch.zeros_like(lam)
    grad_B, grad_C = torch.empty_like(tokens.B), torch.empty_like(tokens.C)
    chunks = _parts(range(len(grad)), CHECKPOINT_EVERY, reverse)
    longest = max(map(len, chunks))
    decays, states = tokens.scratch(longest), tokens.scratch(longest + 1)
    lams = tokens.scratch(tokens.block_size())
    for chunk, start in zip(
        reversed(chunks), reversed(checkpoints.unbind(1)), strict=True
    ):
        run = states[: len(chunk) + 1]
        _run_(
            tokens,
            _slice(chunk),
            start,
            decays[: len(chunk)],
            run,
            reverse,
        )
        for block in reversed(_parts(chunk, tokens.block_size(), reverse)):
            here, local = _slice(block), _slice(block, chunk.start)
            after = _after(run, reverse)[local]
            before = _before(run, reverse)[local]
            decay, lams_ = decays[local], lams[: len(block)]
            lam = _lambdas_(tokens, here, grad, decay, lam, lams_, reverse)
            if with_output:
                y[here] = tokens.read(here, after)
            grad_C[here] = (grad[here].unsqueeze(-2) @ after).squeeze(-2)
            dt_u = tokens.dt_u[here].unsqueeze(-2)
            grad_B[here] = (dt_u @ lams_).squeeze(-2)
            B = tokens.B[here].unsqueeze(-1)
            grad_dt_u[here] = (lams_ @ B).squeeze(-1)
            # Gradient of the log decay, dt A.
            log_decay = decay.mul_(lams_).mul_(before)
            for t, gradient in zip(block, log_decay.unbind(0), strict=True):
                grad_A.addcmul_(gradient, tokens.dt[t].unsqueeze(-1))
            grad_dt[here] = log_decay.mul_(tokens.A).sum(-1)
    grad_A = grad_A.sum(0).flatten(0, 1)
    return y, grad_dt, grad_dt_u, grad_A, grad_B, grad_C, lam


def _lambdas_(
    tokens: _Tokens,
    where: slice,
    grad: Tensor,
    decays: Tensor,
    lam: Tensor,
    lams: Tensor,
    reverse: bool,
) -> Tensor:
    """Compute the gradients of the states after each token of a block.

    Args:
        tokens (_Tokens): Inputs.
        where (slice): The block.
        grad (Tensor): Gradient of all outputs by token.
        decays (Tensor): Decays of the block.
        lam (Tensor): Gradient of the state after the block, from what comes
            later.
        lams (Tensor): Filled, like ``decays``.
        reverse (bool): Whether the last token was processed first.

    Returns:
        Tensor: Gradient of the state before the block.
    """
    C = tokens.C[where].unsqueeze(-2)
    torch.mul(grad[where].unsqueeze(-1), C, out=lams)
    slots, factors = lams.unbind(0), decays.unbind(0)
    for t in _steps(len(slots), not reverse):
        slots[t].add_(lam)
        lam = slots[t] * factors[t]
    return lam
