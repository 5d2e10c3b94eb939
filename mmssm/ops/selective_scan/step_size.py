"""Step size of the selective scan and its adjoint."""

import torch
import torch.nn.functional as F
from torch import Tensor


def step_size(
    delta: Tensor, delta_bias: Tensor | None, delta_softplus: bool
) -> Tensor:
    """Final step size, in the dtype of ``delta``.

    Args:
        delta (Tensor): ``(batch, dim, length)`` in the working dtype.
        delta_bias (Tensor, optional): ``(dim,)``.
        delta_softplus (bool): Whether softplus follows.

    Returns:
        Tensor: Like ``delta``.
    """
    if delta_bias is not None:
        delta = delta + delta_bias.to(delta.dtype).unsqueeze(-1)
    return F.softplus(delta) if delta_softplus else delta


def step_size_bwd(
    grad: Tensor,
    delta: Tensor,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> Tensor:
    """Gradient of ``delta`` from that of the step size."""
    if not delta_softplus:
        return grad
    return grad * torch.sigmoid(step_size(delta, delta_bias, False))
