"""Skip and gate after a scan: ``(y + D x) * silu(z)``, and its adjoint."""

import torch
import torch.nn.functional as F
from torch import Tensor


def skip_and_gate(
    y: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    channel_dim: int,
) -> Tensor:
    """Add ``D x`` and multiply by ``silu(z)``, in the dtype of ``y``.

    Args:
        y (Tensor): Output of the recurrence.
        x (Tensor, optional): Input of the skip, like ``y``.
        D (Tensor, optional): Skip of each channel; None: no skip.
        z (Tensor, optional): Gate, like ``y``; None: no gate.
        channel_dim (int): Axis of the channels, -1 or -2.

    Returns:
        Tensor: Like ``y``.
    """
    if D is not None:
        y = y + x.to(y.dtype) * _per_channel(D, channel_dim).to(y.dtype)
    return y if z is None else y * F.silu(z.to(y.dtype))


def skip_and_gate_bwd(
    grad: Tensor,
    y: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    channel_dim: int,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Adjoint of `skip_and_gate`, all in the dtype of ``y``.

    Args:
        grad (Tensor): Gradient of the result.
        y (Tensor): As in `skip_and_gate`, like the others.
        x (Tensor, optional): Input of the skip.
        D (Tensor, optional): Skip.
        z (Tensor, optional): Gate.
        channel_dim (int): Axis of the channels.

    Returns:
        tuple: Gradients of ``y``, ``x``, ``D`` and ``z``; None where there
        is no such input. That of ``y`` may be ``grad`` itself.
    """
    dtype = y.dtype
    grad = grad.to(dtype)
    grad_x = grad_D = grad_z = None
    if z is not None:
        z = z.to(dtype)
        sigmoid = torch.sigmoid(z)
        ungated = skip_and_gate(y, x, D, None, channel_dim)
        slope = sigmoid * (1 + z * (1 - sigmoid))
        grad_z = grad * ungated * slope
        grad = grad * (z * sigmoid)
    if D is not None:
        grad_x = grad * _per_channel(D, channel_dim).to(dtype)
        others = [d for d in range(y.ndim) if d != y.ndim + channel_dim]
        grad_D = (grad * x.to(dtype)).sum(others)
    return grad, grad_x, grad_D, grad_z


def _per_channel(D: Tensor, channel_dim: int) -> Tensor:
    return D if channel_dim == -1 else D.unsqueeze(-1)
