"""The causal convolution as a sum of shifted products (`torch` backend)."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def causal_conv1d_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor,
) -> Tensor:
    """Convolve all frames; arguments as in `causal_conv1d_reference`.

    The result has the memory layout of ``x``: channels-last stays so.
    """
    channels_last = x.stride(1) == 1 and x.stride(2) != 1
    if not channels_last:
        frames = torch.cat((initial_states, x), dim=2)
        return ShiftedProducts.apply(frames, weight, bias, 2)
    frames = torch.cat((initial_states.mT, x.mT), dim=1)
    return ShiftedProducts.apply(frames, weight, bias, 1).mT


class ShiftedProducts(torch.autograd.Function):
    """Sum over the taps of tap times frames shifted.

    The adjoint is written by hand: autograd would make a full-size zero
    tensor per tap.
    """

    @staticmethod
    def forward(
        ctx, frames: Tensor, weight: Tensor, bias: Tensor | None, time: int
    ) -> Tensor:
        """Convolve without padding.

        Args:
            ctx: Autograd context.
            frames (Tensor): ``(batch, dim, history + length)``, or with the
                last two axes swapped.
            weight (Tensor): ``(dim, width)``, with width = history + 1.
            bias (Tensor, optional): ``(dim,)``.
            time (int): Axis of time in ``frames``, 2 or 1.

        Returns:
            Tensor: ``(batch, dim, length)``, or with the last two swapped.
        """
        ctx.save_for_backward(frames, weight)
        ctx.time = time
        length = frames.shape[time] - weight.shape[1] + 1
        y = None
        for k, tap in enumerate(_taps(weight, time)):
            shifted = frames.narrow(time, k, length)
            if y is None:
                y = shifted * tap
            else:
                y.addcmul_(shifted, tap)
        if bias is not None:
            y.add_(bias if time == 1 else bias.unsqueeze(-1))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of ``frames``, ``weight`` and ``bias``."""
        frames, weight = ctx.saved_tensors
        time, length = ctx.time, grad.shape[ctx.time]
        but_channels = (0, time)
        grad_frames = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_frames = torch.zeros_like(frames)
            for k, tap in enumerate(_taps(weight, time)):
                grad_frames.narrow(time, k, length).addcmul_(grad, tap)
        if ctx.needs_input_grad[1]:
            grad_taps = [
                (grad * frames.narrow(time, k, length)).sum(but_channels)
                for k in range(weight.shape[1])
            ]
            grad_weight = torch.stack(grad_taps, dim=1)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum(but_channels)
        return grad_frames, grad_weight, grad_bias, None


def _taps(weight: Tensor, time: int) -> tuple[Tensor, ...]:
    """Columns of ``(dim, width)``, shaped to multiply frames."""
    return (weight if time == 1 else weight.unsqueeze(-1)).unbind(1)
