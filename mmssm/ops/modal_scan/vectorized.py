"""The modal scan as a loop over tokens, with its adjoint (`torch` backend).

Only the states at the start of every chunk are kept; the adjoint, written by
hand, recomputes those in between.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmssm.ops.modal_scan.checkpoints import chunks_of
from mmssm.ops.precision import working_dtype
from mmssm.ops.skip_and_gate import skip_and_gate, skip_and_gate_bwd


@dataclass
class _Modes:
    """Poles by token, shaped to multiply ``(batch, modes, groups, width)``.

    Attributes:
        diagonal (tuple[Tensor]): Factor of each mode on itself: real poles,
            then real parts twice.
        cross (tuple[Tensor]): Imaginary parts.
        residues (Tensor): ``(modes, groups, 1)``.
        reals (int): Number of real modes.
        pairs (int): Number of pairs.
    """

    diagonal: tuple[Tensor, ...]
    cross: tuple[Tensor, ...]
    residues: Tensor
    reals: int
    pairs: int

    @classmethod
    def of(
        cls,
        real: Tensor,
        pair_re: Tensor,
        pair_im: Tensor,
        residues: Tensor,
        dtype: torch.dtype,
    ) -> '_Modes':
        diagonal = torch.cat((real, pair_re, pair_re), dim=-1).to(dtype)
        return cls(
            diagonal.transpose(-1, -2).unsqueeze(-1).unbind(1),
            pair_im.to(dtype).transpose(-1, -2).unsqueeze(-1).unbind(1),
            residues.to(dtype).mT.unsqueeze(-1),
            real.shape[-1],
            pair_re.shape[-1],
        )

    def split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts of the pairs, views of a state."""
        return state[:, self.reals :].split((self.pairs, self.pairs), dim=1)

    def advance(self, t: int, state: Tensor, eta_t: Tensor) -> Tensor:
        """Return the state after token t; ``eta_t (batch, groups, width)``."""
        new = self.diagonal[t] * state
        (re, im), (new_re, new_im) = self.split(state), self.split(new)
        new_re.addcmul_(self.cross[t], im, value=-1)
        new_im.addcmul_(self.cross[t], re)
        new[:, : self.reals + self.pairs] += eta_t.unsqueeze(1)
        return new

    def retreat(self, t: int, lam: Tensor) -> Tensor:
        """Gradient of the state before token t from that after it."""
        new = self.diagonal[t] * lam
        (re, im), (new_re, new_im) = self.split(lam), self.split(new)
        new_re.addcmul_(self.cross[t], im)
        new_im.addcmul_(self.cross[t], re, value=-1)
        return new


def modal_scan_fwd(
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan all tokens.

    Args:
        eta (Tensor): ``(batch, length, channels)``.
        real (Tensor): ``(batch, length, groups, reals)``.
        pair_re (Tensor): ``(batch, length, groups, pairs)``.
        pair_im (Tensor): Like ``pair_re``.
        residues (Tensor): ``(groups, reals + 2 pairs)``.
        x (Tensor, optional): Input of the skip, like ``eta``.
        D (Tensor, optional): Skip, ``(channels,)``.
        z (Tensor, optional): Gate, like ``eta``.
        initial_state (Tensor, optional):
            ``(batch, reals + 2 pairs, channels)``.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple: Output like ``eta``; final state; states before the first
        processed token of every chunk, ``(batch, chunks, modes, channels)``.
    """
    dtype, groups = working_dtype(eta.dtype), residues.shape[0]
    modes = _Modes.of(real, pair_re, pair_im, residues, dtype)
    if initial_state is None:
        shape = (eta.shape[0], residues.shape[1], eta.shape[2])
        initial_state = eta.new_zeros(shape, dtype=dtype)
    state = initial_state.to(dtype).unflatten(-1, (groups, -1))
    y = torch.empty_like(eta, dtype=dtype)
    checkpoints = _run(modes, eta, state, y, reverse)
    final_state = checkpoints.pop()
    out = skip_and_gate(y, x, D, z, channel_dim=-1).to(eta.dtype)
    checkpoints = torch.stack(checkpoints, dim=1).flatten(-2)
    return out, final_state.flatten(-2).contiguous(), checkpoints


def modal_scan_bwd(
    grad_out: Tensor,
    grad_final_state: Tensor,
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    checkpoints: Tensor,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    """Adjoint of `modal_scan_fwd`; see the README of this folder.

    Args:
        grad_out (Tensor): Gradient of the output.
        grad_final_state (Tensor): Gradient of the final state.
        eta (Tensor): As in the forward pass, like the others.
        real (Tensor): Real poles.
        pair_re (Tensor): Real parts of the complex poles.
        pair_im (Tensor): Imaginary parts.
        residues (Tensor): Residues.
        x (Tensor, optional): Input of the skip.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        checkpoints (Tensor): What the forward pass kept.
        reverse (bool): Whether the last token was processed first.

    Returns:
        tuple: Gradients of eta, real, pair_re, pair_im, residues, x, D and z,
        in the dtypes of these, None where there is no such input, and of the
        initial state.
    """
    dtype, groups = working_dtype(eta.dtype), residues.shape[0]
    modes = _Modes.of(real, pair_re, pair_im, residues, dtype)
    checkpoints = checkpoints.unflatten(-1, (groups, -1))
    grad, skip_grads = grad_out.to(dtype), (None, None, None)
    if D is not None or z is not None:
        y = torch.empty_like(eta, dtype=dtype)
        _run(modes, eta, checkpoints[:, 0], y, reverse)
        grad, *skip_grads = skip_and_gate_bwd(grad, y, x, D, z, -1)
    lam = grad_final_state.to(dtype).unflatten(-1, (groups, -1))
    *gradients, lam = _adjoint(modes, eta, checkpoints, grad, lam, reverse)
    inputs = (eta, real, pair_re, pair_im, residues, x, D, z)
    gradients = (*gradients, *skip_grads)
    return (
        *(
            None if tensor is None else torch.empty_like(tensor).copy_(g)
            for tensor, g in zip(inputs, gradients, strict=True)
        ),
        lam.flatten(-2).contiguous(),
    )


def _run(
    modes: _Modes, eta: Tensor, state: Tensor, y: Tensor, reverse: bool
) -> list[Tensor]:
    """Fill ``y``; return the states at every chunk's start and at the end."""
    groups = state.shape[2]
    drives = eta.to(y.dtype).unflatten(-1, (groups, -1)).unbind(1)
    outputs = y.unflatten(-1, (groups, -1)).unbind(1)
    checkpoints = []
    for chunk in chunks_of(len(drives), reverse):
        checkpoints.append(state)
        for t in chunk:
            state = modes.advance(t, state, drives[t])
            torch.sum(modes.residues * state, dim=1, out=outputs[t])
    return [*checkpoints, state]


def _adjoint(
    modes: _Modes,
    eta: Tensor,
    checkpoints: Tensor,
    grad: Tensor,
    lam: Tensor,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Run the recurrence backwards.

    Returns:
        tuple: Gradients of eta, real, pair_re, pair_im, residues and the
        initial state.
    """
    groups, length = checkpoints.shape[3], eta.shape[1]
    drives = eta.to(grad.dtype).unflatten(-1, (groups, -1)).unbind(1)
    grads = grad.unflatten(-1, (groups, -1)).unbind(1)
    grad_eta = torch.empty_like(eta, dtype=grad.dtype)
    grad_drives = grad_eta.unflatten(-1, (groups, -1)).unbind(1)
    grad_residues = torch.zeros_like(modes.residues.squeeze(-1))
    by_token: list[tuple[Tensor, Tensor]] = [()] * length
    chunks = chunks_of(length, reverse)
    for chunk, start in zip(
        reversed(chunks), reversed(checkpoints.unbind(1)), strict=True
    ):
        states = [start]
        for t in chunk:
            states.append(modes.advance(t, states[-1], drives[t]))
        for step in range(len(chunk) - 1, -1, -1):
            t, before = chunk[step], states[step]
            g = grads[t].unsqueeze(1)
            grad_residues += (states[step + 1] * g).sum((0, -1))
            lam = torch.addcmul(lam, modes.residues, g)
            driven = lam[:, : modes.reals + modes.pairs]
            torch.sum(driven, dim=1, out=grad_drives[t])
            (re, im), (lam_re, lam_im) = modes.split(before), modes.split(lam)
            cross = (lam_im * re - lam_re * im).sum(-1)
            by_token[t] = ((lam * before).sum(-1), cross)
            lam = modes.retreat(t, lam)
    diagonal, cross = (
        torch.stack(column, dim=1).mT for column in zip(*by_token, strict=True)
    )
    sizes = (modes.reals, modes.pairs, modes.pairs)
    grad_real, grad_re, grad_re_of_im = diagonal.split(sizes, dim=-1)
    return (
        grad_eta,
        grad_real,
        grad_re + grad_re_of_im,
        cross,
        grad_residues.mT,
        lam,
    )
