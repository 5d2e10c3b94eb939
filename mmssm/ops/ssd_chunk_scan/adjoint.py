"""Adjoint of the chunked SSD recurrence, without autograd."""

import torch
from torch import Tensor

from mmssm.ops.precision import working_dtype
from mmssm.ops.skip_and_gate import skip_and_gate_bwd
from mmssm.ops.ssd_chunk_scan.inside import (
    decay_between,
    decay_from_start,
    decay_to_end,
    decayed_scores,
    grad_of_scores,
    grad_of_sums,
    join_chunks,
    read_states,
    running_sums,
    split_chunks,
)
from mmssm.ops.ssd_chunk_scan.reference import sequence_changes, step_size


def ssd_chunk_scan_bwd(
    grad_y: Tensor,
    grad_final_states: Tensor,
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
    chunk_states: Tensor,
    chunk_size: int,
    dt_softplus: bool,
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `ssd_chunk_scan`.

    Args:
        grad_y (Tensor): Gradient of the output.
        grad_final_states (Tensor): Gradient of the final state.
        x (Tensor): This and the others up to ``initial_states`` as in
            `ssd_chunk_scan`.
        dt (Tensor): Step size as the user gave it.
        A (Tensor): Decay rate.
        B (Tensor): Input matrix.
        C (Tensor): Output matrix.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        dt_bias (Tensor, optional): Bias of the step size.
        seq_idx (Tensor, optional): Numbers of the sequences.
        initial_states (Tensor, optional): State before the first frame.
        chunk_states (Tensor): State before every chunk,
            ``(batch, chunks, heads, headdim, state)``.
        chunk_size (int): Frames per chunk.
        dt_softplus (bool): Whether softplus was applied to ``dt``.

    Returns:
        tuple: Gradients of ``x``, ``dt``, ``A``, ``B``, ``C``, ``D``, ``z``,
        ``dt_bias`` and ``initial_states`` in the dtype of each; None where
        there is no such input.
    """
    dtype = working_dtype(x.dtype)
    batch, length = x.shape[:2]
    chunk_size = min(chunk_size, length)
    x_work, rate = x.to(dtype), A.to(dtype)
    step = step_size(dt, dt_bias, dt_softplus, dtype)
    changes = sequence_changes(seq_idx)
    chunks = ChunkedAdjoint(
        *(split_chunks(t, chunk_size) for t in (x_work, step, step * rate)),
        *(split_chunks(t.to(dtype), chunk_size) for t in (B, C)),
        None if changes is None else split_chunks(changes, chunk_size),
        chunk_states,
    )
    y = x_work
    if z is not None:
        y = join_chunks(chunks.output(), batch, length)
    grad, grad_skip, grad_D, grad_z = _skip_and_gate_bwd(
        grad_y, y, x_work, D, z
    )
    *grads, grad_state = chunks.gradients(
        split_chunks(grad, chunk_size), grad_final_states.to(dtype)
    )
    grad_x, grad_step, grad_log_decay, grad_B, grad_C = (
        join_chunks(t, batch, length) for t in grads
    )
    if grad_skip is not None:
        grad_x = grad_x + grad_skip
    grad_A = (grad_log_decay * step).sum((0, 1))
    grad_dt = grad_step + grad_log_decay * rate
    if dt_softplus:
        raw = step_size(dt, dt_bias, False, dtype)
        grad_dt = torch.ops.aten.softplus_backward(grad_dt, raw, 1, 20)
    grad_bias = None if dt_bias is None else grad_dt.sum((0, 1))
    gradients = (
        (grad_x, x),
        (grad_dt, dt),
        (grad_A, A),
        (grad_B, B),
        (grad_C, C),
        (grad_D, D),
        (grad_z, z),
        (grad_bias, dt_bias),
        (grad_state, initial_states),
    )
    return tuple(
        None if t is None else torch.empty_like(t).copy_(grad)
        for grad, t in gradients
    )


def _skip_and_gate_bwd(
    grad: Tensor, y: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """`skip_and_gate_bwd` with one axis for the channels of all heads."""
    heads, headdim = x.shape[-2:]
    skip = D
    if D is not None:
        skip = (D.unsqueeze(-1) if D.ndim == 1 else D).expand(heads, headdim)
        skip = skip.flatten()
    grad, y, x = (t.flatten(-2) for t in (grad, y, x))
    z = None if z is None else z.flatten(-2)
    grad, grad_x, grad_D, grad_z = skip_and_gate_bwd(
        grad, y, x, skip, z, channel_dim=-1
    )
    grad, grad_x, grad_D, grad_z = (
        None if t is None else t.unflatten(-1, (heads, headdim))
        for t in (grad, grad_x, grad_D, grad_z)
    )
    if D is not None and D.ndim == 1:
        grad_D = grad_D.sum(-1)
    return grad, grad_x, grad_D, grad_z


class ChunkedAdjoint:
    """The chunks of a scan, and what their gradients need.

    Args:
        x (Tensor): ``(chunks, length, heads, headdim)``.
        step (Tensor): Final step size, ``(chunks, length, heads)``.
        log_decay (Tensor): Step times A, like ``step``.
        B (Tensor): ``(chunks, length, groups, state)``.
        C (Tensor): ``(chunks, length, groups, state)``.
        changes (Tensor, optional): Where a sequence starts,
            ``(chunks, length)``.
        chunk_states (Tensor): State before every chunk,
            ``(batch, chunks of a row, heads, headdim, state)``.
    """

    def __init__(
        self,
        x: Tensor,
        step: Tensor,
        log_decay: Tensor,
        B: Tensor,
        C: Tensor,
        changes: Tensor | None,
        chunk_states: Tensor,
    ) -> None:
        self.x, self.step, self.chunk_states = x, step, chunk_states
        self.starts = chunk_states.flatten(0, 1)
        self.C_frames = C
        # (chunks, groups, length, state)
        self.B, self.C = B.transpose(1, 2), C.transpose(1, 2)
        sums, count = running_sums(log_decay, changes)
        self.from_start = decay_from_start(sums, count, x.dtype)
        self.to_end = decay_to_end(sums, count, x.dtype)
        self.decay = decay_between(sums, count, x.dtype)
        scores = self.C @ self.B.transpose(-1, -2)
        self.mixing = decayed_scores(scores, self.decay)
        self.scaled = (x * step.unsqueeze(-1)).transpose(1, 2)

    def output(self) -> Tensor:
        """Output of the scan, like ``x``."""
        y = (self.mixing @ self.scaled).transpose(1, 2)
        return y + read_states(self.starts, self.C_frames, self.from_start)

    def gradients(
        self, grad: Tensor, grad_final_states: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the adjoint.

        Args:
            grad (Tensor): Gradient of the output, like ``x``.
            grad_final_states (Tensor): Gradient of the final state.

        Returns:
            tuple: Gradients of ``x``, ``step``, ``log_decay``, ``B``, ``C``
            and the initial state.
        """
        grad = grad.transpose(1, 2)
        # What the chunk reads from the state before it.
        of_state = self.C @ self._by_group(self.starts).transpose(-1, -2)
        of_state = self._by_head(of_state)
        grad_sums = self._grad_of_decay(grad * of_state, self.from_start)
        grad_read = self._frames_by_group(grad * self.from_start[..., None])
        grad_C = grad_read @ self._by_group(self.starts)
        grad_starts = grad_read.transpose(-1, -2) @ self.C
        grad_update, grad_total, grad_initial = self._pass_back(
            grad_starts.view_as(self.starts), grad_final_states
        )
        # What it adds to the state after it.
        weighted = self.scaled * self.to_end[..., None]
        grad_update = self._by_group(grad_update)
        grad_B = self._frames_by_group(weighted) @ grad_update
        grad_weighted = self.B @ grad_update.transpose(-1, -2)
        grad_weighted = self._by_head(grad_weighted)
        grad_scaled = grad_weighted * self.to_end[..., None]
        lost = self._grad_of_decay(grad_weighted * self.scaled, self.to_end)
        grad_sums -= lost
        grad_sums[..., -1] += lost.sum(-1) + grad_total
        # What its frames give to each other.
        grad_mixing = grad @ self.scaled.transpose(-1, -2)
        grad_scaled = grad_scaled + self.mixing.transpose(-1, -2) @ grad
        grad_sums += grad_of_sums(grad_mixing, self.mixing)
        grad_scores = grad_of_scores(grad_mixing, self.decay, self.B.shape[1])
        grad_C = grad_C + grad_scores @ self.B
        grad_B = grad_B + grad_scores.transpose(-1, -2) @ self.C
        grad_scaled = grad_scaled.transpose(1, 2)
        grad_log_decay = grad_sums.flip(-1).cumsum(-1).flip(-1)
        return (
            grad_scaled * self.step[..., None],
            (grad_scaled * self.x).sum(-1),
            grad_log_decay.to(self.x.dtype).transpose(1, 2),
            grad_B.transpose(1, 2),
            grad_C.transpose(1, 2),
            grad_initial,
        )

    def _pass_back(
        self, grad_starts: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Adjoint of the states' way from chunk to chunk.

        Returns:
            tuple: Gradients of what each chunk adds to the state, like
            ``starts``; of the sum of its log decay, ``(chunks, heads)``; and
            of the initial state.
        """
        total = self.from_start[..., -1]
        rows = self.chunk_states.shape[:2]
        grads = []
        steps = zip(
            grad_starts.unflatten(0, rows).unbind(1),
            total.unflatten(0, rows)[..., None, None].unbind(1),
            strict=True,
        )
        for direct, decay in reversed(list(steps)):
            grads.append(grad)
            grad = torch.addcmul(direct, grad, decay)
        grads = torch.stack(grads[::-1], 1).flatten(0, 1)
        grad_total = (grads * self.starts).sum((-1, -2)) * total
        return grads, grad_total, grad

    def _grad_of_decay(self, product: Tensor, decay: Tensor) -> Tensor:
        """Gradient of a decay's exponent, in float64 like the sums."""
        return (product.sum(-1) * decay).double()

    def _by_group(self, states: Tensor) -> Tensor:
        """``(chunks, groups, channels of a group, state)``."""
        chunks, _, _, d_state = states.shape
        return states.reshape(chunks, self.B.shape[1], -1, d_state)

    def _frames_by_group(self, t: Tensor) -> Tensor:
        """``(chunks, groups, length, channels of a group)``."""
        chunks, heads, length, headdim = t.shape
        groups = self.B.shape[1]
        t = t.view(chunks, groups, heads // groups, length, headdim)
        return t.transpose(2, 3).flatten(-2)

    def _by_head(self, t: Tensor) -> Tensor:
        """``(chunks, heads, length, headdim)``: `_frames_by_group` undone."""
        t = t.unflatten(-1, (-1, self.x.shape[-1]))
        return t.transpose(2, 3).flatten(1, 2)
