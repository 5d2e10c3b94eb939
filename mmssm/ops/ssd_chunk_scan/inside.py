"""What happens inside the chunks of the SSD recurrence: matrix products."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def split_chunks(t: Tensor, chunk_size: int) -> Tensor:
    """Cut ``(batch, length, ...)`` into ``(chunks, chunk_size, ...)``.

    A last chunk that is not full is filled with zeros: frames of ``dt = 0``
    neither decay nor feed the state.
    """
    batch, length = t.shape[:2]
    chunks = -(-length // chunk_size)
    padding = chunks * chunk_size - length
    if padding:
        t = F.pad(t, (0, 0) * (t.ndim - 2) + (0, padding))
    return t.reshape(batch * chunks, chunk_size, *t.shape[2:])


def join_chunks(t: Tensor, batch: int, length: int) -> Tensor:
    """Put together what `split_chunks` has cut."""
    return t.reshape(batch, -1, *t.shape[2:])[:, :length]


def inside_chunks(
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
    sums, count = running_sums(log_decay, changes)
    # (chunks, groups, length, length), one for all heads of the group
    scores = torch.matmul(C.transpose(1, 2), B.permute(0, 2, 3, 1))
    mixing = DecayedScores.apply(scores, sums, count)
    scaled = (x * dt.unsqueeze(-1)).transpose(1, 2)
    y = torch.matmul(mixing, scaled).transpose(1, 2)
    from_start = decay_from_start(sums, count, x.dtype)
    total = from_start[..., -1]
    update = None
    if with_update:
        to_end = decay_to_end(sums, count, x.dtype)
        weighted = (scaled * to_end.unsqueeze(-1)).transpose(-1, -2)
        weighted = weighted.reshape(chunks, groups, group_width, length)
        update = torch.matmul(weighted, B.transpose(1, 2))
        update = update.view(chunks, heads, headdim, d_state)
    return y, update, from_start, total


def running_sums(
    log_decay: Tensor, changes: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Sum the log decay, and count the changes, up to and with each frame.

    Args:
        log_decay (Tensor): ``(chunks, length, heads)``.
        changes (Tensor, optional): ``(chunks, length)``.

    Returns:
        tuple: Sums ``(chunks, heads, length)`` in float64; counts
        ``(chunks, 1, length)``, equal for frames of the same sequence, or
        None.
    """
    # In float64: the difference of two float32 running sums is only as
    # accurate as the larger of them. Cast first: `cumsum(dtype=...)` would
    # cast the gradient before it is summed.
    sums = log_decay.transpose(1, 2).double().cumsum(-1)
    if changes is None:
        return sums, None
    return sums, changes.unsqueeze(1).cumsum(-1, dtype=torch.int32)


def decay_from_start(
    sums: Tensor, count: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Decay from the start of the chunk to each frame."""
    decay = sums.to(dtype).exp()
    return decay if count is None else decay.masked_fill(count != 0, 0)


def decay_to_end(
    sums: Tensor, count: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Decay from each frame to the end of the chunk."""
    decay = (sums[..., -1:] - sums).to(dtype).exp()
    if count is None:
        return decay
    return decay.masked_fill(count != count[..., -1:], 0)


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
        decay = decay_between(sums, count, scores.dtype)
        mixing = decayed_scores(scores, decay)
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
            grad_scores = grad_of_scores(grad, decay, ctx.groups)
        if ctx.needs_input_grad[1]:
            grad_sums = grad_of_sums(grad, mixing)
        return grad_scores, grad_sums, None


def decayed_scores(scores: Tensor, decay: Tensor) -> Tensor:
    """Product of the scores of each group and the decays of each head."""
    groups = scores.shape[1]
    grouped = decay.unflatten(1, (groups, decay.shape[1] // groups))
    return (grouped * scores.unsqueeze(2)).view_as(decay)


def grad_of_scores(grad: Tensor, decay: Tensor, groups: int) -> Tensor:
    """Gradient of the scores, from that of `DecayedScores`."""
    per_group = (groups, grad.shape[1] // groups)
    return (grad * decay).unflatten(1, per_group).sum(2)


def grad_of_sums(grad: Tensor, mixing: Tensor) -> Tensor:
    """Gradient of the running sums, from that of `DecayedScores`."""
    product = grad * mixing
    # In float64: what both sums share, above all the diagonal, has to cancel
    # exactly, or fast heads get a noise gradient.
    grad_sums = product.sum(-1, dtype=torch.float64)
    grad_sums -= product.sum(-2, dtype=torch.float64)
    return grad_sums


def decay_between(
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


def read_states(state: Tensor, C: Tensor, from_start: Tensor) -> Tensor:
    """What the state at the start of each chunk adds to its outputs."""
    chunks, heads, headdim, d_state = state.shape
    length, groups = C.shape[1:3]
    group_width = heads // groups * headdim
    state = state.reshape(chunks, groups, group_width, d_state)
    y = torch.matmul(C.transpose(1, 2), state.transpose(-1, -2))
    y = y.view(chunks, groups, length, heads // groups, headdim)
    y = y.permute(0, 2, 1, 3, 4).reshape(chunks, length, heads, headdim)
    return y * from_start.transpose(1, 2).unsqueeze(-1)
