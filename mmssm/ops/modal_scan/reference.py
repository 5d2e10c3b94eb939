"""The definition of the modal scan: one token after the other."""

import torch
from torch import Tensor


def modal_scan_reference(
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    state: Tensor,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Scan token by token; all tensors in the working dtype.

    Args:
        eta (Tensor): ``(batch, length, channels)``, length at least 1.
        real (Tensor): Real poles ``(batch, length, groups, reals)``.
        pair_re (Tensor): Real parts of the complex poles,
            ``(batch, length, groups, pairs)``.
        pair_im (Tensor): Their imaginary parts.
        residues (Tensor): ``(groups, reals + 2 pairs)``.
        state (Tensor): ``(batch, reals + 2 pairs, channels)``.
        reverse (bool): Whether the last token is processed first.

    Returns:
        tuple[Tensor, Tensor]: Output like ``eta`` and the final state.
    """
    reals, pairs = real.shape[-1], pair_re.shape[-1]
    width = eta.shape[-1] // residues.shape[0]

    def per_channel(t: Tensor) -> Tensor:
        # (..., groups, modes) to (..., modes, channels)
        return t.transpose(-1, -2).repeat_interleave(width, dim=-1)

    residues = per_channel(residues)
    tokens = list(
        zip(
            eta.unbind(1),
            *(per_channel(t).unbind(1) for t in (real, pair_re, pair_im)),
            strict=True,
        )
    )
    outputs = []
    for eta_t, real_t, re_t, im_t in reversed(tokens) if reverse else tokens:
        drive = eta_t.unsqueeze(1)
        first, re, im = state.split((reals, pairs, pairs), dim=1)
        first = real_t * first + drive
        re, im = re_t * re - im_t * im + drive, im_t * re + re_t * im
        state = torch.cat((first, re, im), dim=1)
        outputs.append((residues * state).sum(1))
    if reverse:
        outputs.reverse()
    return torch.stack(outputs, dim=1), state
