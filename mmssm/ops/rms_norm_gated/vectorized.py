"""The gated RMS normalisation by torch's own (`torch` backend)."""

import torch.nn.functional as F
from torch import Tensor


def rms_norm_gated_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
) -> Tensor:
    """Normalise; arguments as in `rms_norm_gated_reference`."""
    if z is not None and not norm_before_gate:
        x = x * F.silu(z)
    if group_size == x.shape[-1]:
        y = F.rms_norm(x, (group_size,), weight, eps)
    else:
        y = F.rms_norm(
            x.unflatten(-1, (-1, group_size)), (group_size,), eps=eps
        )
        y = y.flatten(-2) * weight
    if bias is not None:
        y = y + bias
    return y * F.silu(z) if z is not None and norm_before_gate else y
