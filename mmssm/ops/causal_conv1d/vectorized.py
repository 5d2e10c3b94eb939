"""The causal convolution as a sum of shifted products (`torch` backend)."""

import torch
from torch import Tensor


def causal_conv1d_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
) -> Tensor:
    """Convolve all frames; arguments as in `causal_conv1d_reference`.

    ``initial_states`` may be None for zeros. The result has the memory layout
    of ``x``: channels-last stays channels-last.
    """
    length, width = x.shape[-1], weight.shape[-1]
    channels_last = x.stride(1) == 1 and x.stride(2) != 1
    if initial_states is None:
        initial_states = x.new_zeros(*x.shape[:2], width - 1)
    if channels_last:
        time = 1
        history, x = initial_states.transpose(1, 2), x.transpose(1, 2)
        taps = weight.unbind(-1)
    else:
        time, history = 2, initial_states
        taps = weight.unsqueeze(-1).unbind(1)
        bias = None if bias is None else bias.unsqueeze(-1)
    frames = torch.cat((history, x), dim=time)
    y = bias
    for k, tap in enumerate(taps):
        shifted = frames.narrow(time, k, length)
        y = shifted * tap if y is None else torch.addcmul(y, shifted, tap)
    return y.transpose(1, 2) if channels_last else y
