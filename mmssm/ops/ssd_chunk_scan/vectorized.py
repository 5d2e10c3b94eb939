"""The SSD recurrence as matrix products inside chunks (`torch` backend)."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


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

    chunks = -(-length // chunk_size)
    padding = chunks * chunk_size - length

    def split(t: Tensor) -> Tensor:
        # Frames added with dt = 0 neither decay nor feed the state.
        if padding:
            t = F.pad(t, (0, 0) * (t.ndim - 2) + (0, padding))
        return t.reshape(batch * chunks, chunk_size, *t.shape[2:])

    x, dt, log_decay, B, C = map(split, (x, dt, log_decay, B, C))
    if changes is not None:
        changes = split(changes)
    y, update, from_start, total = _inside(
        x, dt, log_decay, B, C, changes, True
    )

    # State at the start of every chunk: the only sequential part.
    update = update.view(batch, chunks, heads, headdim, B.shape[-1])
    total = total.view(batch, chunks, heads, 1, 1)
    if state is None:
        state = torch.zeros_like(update[:, 0])
    starts = []
    for added, decay in zip(update.unbind(1), total.unbind(1), strict=True):
        starts.append(state)
        state = torch.addcmul(added, state, decay)
    y = y + _read(torch.stack(starts, 1).flatten(0, 1), C, from_start)
    y = y.reshape(batch, chunks * chunk_size, heads, headdim)[:, :length]
    return y, state if return_final_states else None


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
    y, update, from_start, total = _inside(
        x, dt, log_decay, B, C, changes, return_final_states
    )
    if state is not None:
        y = y + _read(state, C, from_start)
        if return_final_states:
            update = torch.addcmul(update, state, total[..., None, None])
    return y, update


def _inside(
    x: Tensor,
    dt: Tensor,
    log_decay: Tensor,
    B: Tensor,
    C: Tensor,
    changes: Tensor | None,
    with_update: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Run every chunk from a zero state.

    Args:
        x (Tensor): ``(chunks, length, heads, headdim)``.
        dt (Tensor): ``(chunks, length, heads)``.
        log_decay (Tensor): dt A, like ``dt``.
        B (Tensor): ``(chunks, length, groups, state)``.
        C (Tensor): ``(chunks, length, groups, state)``.
        changes (Tensor, optional): Where a sequence starts,
            ``(chunks, length)``.
        with_update (bool): Whether to compute the state at the end.

    Returns:
        tuple: Output like ``x``; state at the end
        ``(chunks, heads, headdim, state)`` or None; decay from the start of
        the chunk to each frame ``(chunks, heads, length)``; decay of the
        whole chunk ``(chunks, heads)``. A decay over a change is zero.
    """
    chunks, length, heads, headdim = x.shape
    groups, d_state = B.shape[2:]
    group_width = heads // groups * headdim
    # In float64: the difference of two float32 running sums is only as
    # accurate as the larger of them. Cast first: `cumsum(dtype=...)` would
    # cast the gradient before it is summed.
    sums = log_decay.transpose(1, 2).double().cumsum(-1)
    # (chunks, groups, length, length), one for all heads of the group
    scores = torch.matmul(C.permute(0, 2, 1, 3), B.permute(0, 2, 3, 1))
    # Frames of a chunk with the same count are of the same sequence.
    count = None
    if changes is not None:
        count = changes.unsqueeze(1).cumsum(-1, dtype=torch.int32)
    mixing = DecayedScores.apply(scores, sums, count)
    scaled = (x * dt.unsqueeze(-1)).transpose(1, 2)
    y = torch.matmul(mixing, scaled).transpose(1, 2)
    from_start = sums.to(x.dtype).exp()
    if count is not None:
        from_start = from_start.masked_fill(count != 0, 0)
    total = from_start[..., -1]
    update = None
    if with_update:
        to_end = (sums[..., -1:] - sums).to(x.dtype).exp()
        if count is not None:
            to_end = to_end.masked_fill(count != count[..., -1:], 0)
        weighted = (scaled * to_end.unsqueeze(-1)).transpose(-1, -2)
        weighted = weighted.reshape(chunks, groups, group_width, length)
        update = torch.matmul(weighted, B.transpose(1, 2))
        update = update.view(chunks, heads, headdim, d_state)
    return y, update, from_start, total


class DecayedScores(torch.autograd.Function):
    """Scores times the decay between two frames of a chunk, causal.

    Its adjoint is written by hand since the decays themselves are never
    needed: fewer passes over matrices of ``length x length`` per head.
    """

    @staticmethod
    def forward(
        ctx, scores: Tensor, sums: Tensor, count: Tensor | None
    ) -> Tensor:
        """Compute ``scores[i, j] * exp(sums[i] - sums[j])``.

        It is zero for j > i and where the counts differ.

        Args:
            ctx: Autograd context.
            scores (Tensor): ``(chunks, groups, length, length)``.
            sums (Tensor): Running sums of the log decay,
                ``(chunks, heads, length)``, float64.
            count (Tensor, optional): Number of the sequence in its chunk,
                ``(chunks, 1, length)``.

        Returns:
            Tensor: ``(chunks, heads, length, length)``.
        """
        groups = scores.shape[1]
        decay = _decay_between(sums, count, scores.dtype)
        grouped = decay.unflatten(1, (groups, decay.shape[1] // groups))
        mixing = (grouped * scores.unsqueeze(2)).view_as(decay)
        ctx.save_for_backward(decay, mixing)
        ctx.groups = groups
        return mixing

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of ``scores`` and ``sums``."""
        decay, mixing = ctx.saved_tensors
        grad_scores = grad_sums = None
        if ctx.needs_input_grad[0]:
            grad_scores = grad * decay
            per_group = (ctx.groups, grad.shape[1] // ctx.groups)
            grad_scores = grad_scores.unflatten(1, per_group).sum(2)
        if ctx.needs_input_grad[1]:
            product = grad * mixing
            # In float64: what both sums share, above all the diagonal, has
            # to cancel exactly, or fast heads get a noise gradient.
            grad_sums = product.sum(-1, dtype=torch.float64)
            grad_sums -= product.sum(-2, dtype=torch.float64)
        return grad_scores, grad_sums, None


def _decay_between(
    sums: Tensor, count: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """``exp(sums[i] - sums[j])`` or zero, without a matrix in float64."""
    length = sums.shape[-1]
    high = sums.to(dtype)
    between = high.unsqueeze(-1) - high.unsqueeze(-2)
    if dtype != sums.dtype:
        # A float64 number is the sum of two float32 ones; the difference of
        # the first is exact to its own rounding.
        low = (sums - high).to(dtype)
        between.add_(low.unsqueeze(-1)).sub_(low.unsqueeze(-2))
    mask = torch.ones(
        length, length, dtype=torch.bool, device=sums.device
    ).triu_(1)
    if count is not None:
        mask = mask | (count.unsqueeze(-1) != count.unsqueeze(-2))
    # Masked before exp, which would overflow above the diagonal.
    return between.masked_fill_(mask, -torch.inf).exp_()


def _read(state: Tensor, C: Tensor, from_start: Tensor) -> Tensor:
    """What the state at the start of each chunk adds to its outputs."""
    chunks, heads, headdim, d_state = state.shape
    length, groups = C.shape[1:3]
    group_width = heads // groups * headdim
    state = state.reshape(chunks, groups, group_width, d_state)
    y = torch.matmul(C.transpose(1, 2), state.transpose(-1, -2))
    y = y.view(chunks, groups, length, heads // groups, headdim)
    y = y.permute(0, 2, 1, 3, 4).reshape(chunks, length, heads, headdim)
    return y * from_start.transpose(1, 2).unsqueeze(-1)
