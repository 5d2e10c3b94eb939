"""The definition of the causal depthwise convolution."""

import torch
from torch import Tensor


def causal_conv1d_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor,
    reverse: bool,
) -> Tensor:
    """Convolve frame by frame; all tensors in the working dtype.

    Args:
        x (Tensor): ``(batch, dim, length)``, length at least 1.
        weight (Tensor): ``(dim, width)``; the last column meets the newest
            frame.
        bias (Tensor, optional): ``(dim,)``.
        initial_states (Tensor): ``(batch, dim, width - 1)``.
        reverse (bool): Whether the last frame is processed first.

    Returns:
        Tensor: Output like ``x``, before the activation.
    """
    window = list(initial_states.unbind(-1))
    taps = weight.unbind(-1)
    frames = x.unbind(-1)
    outputs = []
    for x_t in reversed(frames) if reverse else frames:
        window.append(x_t)
        y_t = torch.zeros_like(x_t) if bias is None else bias.expand_as(x_t)
        for tap, frame in zip(taps, window, strict=True):
            y_t = y_t + tap * frame
        outputs.append(y_t)
        window.pop(0)
    if reverse:
        outputs.reverse()
    return torch.stack(outputs, dim=-1)
