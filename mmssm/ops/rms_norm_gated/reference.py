"""The definition of the gated RMS normalisation."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm_gated_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
) -> Tensor:
    """Normalise the last axis; all tensors in the working dtype.

    Args:
        x (Tensor): ``(..., dim)``.
        weight (Tensor): ``(dim,)``.
        bias (Tensor, optional): ``(dim,)``.
        z (Tensor, optional): Gate, like ``x``.
        eps (float): Added to the mean square.
        group_size (int): Channels that share a mean square.
        norm_before_gate (bool): Whether the gate comes last.

    Returns:
        Tensor: Like ``x``.
    """
    gate = 1.0 if z is None else F.silu(z)
    if not norm_before_gate:
        x = x * gate
    grouped = x.unflatten(-1, (-1, group_size))
    mean_square = grouped.square().mean(-1, keepdim=True)
    y = (grouped * torch.rsqrt(mean_square + eps)).flatten(-2) * weight
    if bias is not None:
        y = y + bias
    return y * gate if norm_before_gate else y
