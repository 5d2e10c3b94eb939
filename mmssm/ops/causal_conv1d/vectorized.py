"""The causal convolution as a sum of shifted products (`torch` backend)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmssm.ops.precision import working_dtype


def causal_conv1d_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
) -> Tensor:
    """Convolve all frames; the result has the memory layout of ``x``.

    Args:
        x (Tensor): ``(batch, dim, length)``.
        weight (Tensor): ``(dim, width)``.
        bias (Tensor, optional): ``(dim,)``.
        initial_states (Tensor, optional): ``(batch, dim, width - 1)``.
        silu (bool): Whether SiLU follows.
        reverse (bool): Whether the filter is anticausal.

    Returns:
        Tensor: Like ``x``.
    """
    time = _time_axis(x)
    frames = _frames(x, weight, initial_states, time, reverse)
    y = _convolve(frames, weight.to(frames.dtype), bias, time, reverse)
    if silu:
        y = F.silu(y, inplace=True)
    y = (y if time == 2 else y.mT).to(x.dtype)
    # Differs where neither time nor channels are contiguous.
    out = torch.empty_like(x)
    return y if y.stride() == out.stride() else out.copy_(y)


def causal_conv1d_bwd(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    """Adjoint of `causal_conv1d_fwd`; see the README of this folder.

    Args:
        grad_y (Tensor): Gradient of the output.
        x (Tensor): As in the forward pass, like the others.
        weight (Tensor): Filters.
        bias (Tensor, optional): Bias.
        initial_states (Tensor, optional): Frames before the first one.
        silu (bool): Whether SiLU followed.
        reverse (bool): Whether the filter was anticausal.

    Returns:
        tuple: Gradients of x, weight, bias and initial_states, in the dtypes
        of these; None where there is no such input.
    """
    time = _time_axis(x)
    length, width = x.shape[2], weight.shape[1]
    frames = _frames(x, weight, initial_states, time, reverse)
    taps = weight.to(frames.dtype)
    grad = (grad_y if time == 2 else grad_y.mT).to(frames.dtype)
    if silu:
        y = _convolve(frames, taps, bias, time, reverse)
        sigmoid = torch.sigmoid(y)
        grad = grad * sigmoid * (1 + y * (1 - sigmoid))
    grad_frames = torch.zeros_like(frames)
    grad_taps = []
    starts = _starts(width, reverse)
    for start, tap in zip(starts, _columns(taps, time), strict=True):
        grad_frames.narrow(time, start, length).addcmul_(grad, tap)
        product = grad * frames.narrow(time, start, length)
        grad_taps.append(product.sum((0, time)))
    if time == 1:
        grad_frames = grad_frames.mT
    grad_x, grad_states = _split(grad_frames, length, reverse)
    return (
        torch.empty_like(x).copy_(grad_x),
        torch.stack(grad_taps, dim=1).to(weight.dtype),
        None if bias is None else grad.sum((0, time)).to(bias.dtype),
        None
        if initial_states is None
        else torch.empty_like(initial_states).copy_(grad_states),
    )


def _time_axis(x: Tensor) -> int:
    """Axis of time when the axis that is contiguous in ``x`` is last."""
    return 1 if x.stride(1) == 1 and x.stride(2) != 1 else 2


def _frames(
    x: Tensor,
    weight: Tensor,
    initial_states: Tensor | None,
    time: int,
    reverse: bool,
) -> Tensor:
    """[initial_states, x] in order of time, in the working dtype."""
    dtype = working_dtype(x.dtype)
    if initial_states is None:
        shape = (*x.shape[:2], weight.shape[1] - 1)
        initial_states = x.new_zeros(shape, dtype=dtype)
    states = initial_states.to(dtype)
    parts = (x.to(dtype), states.flip(2)) if reverse else (states, x.to(dtype))
    if time == 1:
        parts = [part.mT for part in parts]
    return torch.cat(tuple(parts), dim=time)


def _convolve(
    frames: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    time: int,
    reverse: bool,
) -> Tensor:
    width = taps.shape[1]
    length = frames.shape[time] - width + 1
    y = None
    starts = _starts(width, reverse)
    for start, tap in zip(starts, _columns(taps, time), strict=True):
        shifted = frames.narrow(time, start, length)
        y = shifted * tap if y is None else y.addcmul_(shifted, tap)
    if bias is not None:
        bias = bias.to(y.dtype)
        y.add_(bias if time == 1 else bias.unsqueeze(-1))
    return y


def _starts(width: int, reverse: bool) -> range:
    """First frame that each tap meets; the last tap meets the token."""
    return range(width - 1, -1, -1) if reverse else range(width)


def _columns(taps: Tensor, time: int) -> tuple[Tensor, ...]:
    """Columns of ``(dim, width)``, shaped to multiply frames."""
    return (taps if time == 1 else taps.unsqueeze(-1)).unbind(1)


def _split(
    grad_frames: Tensor, length: int, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the initial states, ``(batch, dim, ...)``."""
    if reverse:
        return grad_frames[..., :length], grad_frames[..., length:].flip(2)
    history = grad_frames.shape[-1] - length
    return grad_frames[..., history:], grad_frames[..., :history]
