"""Public functions of the causal convolution: shapes, checks, dispatch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmssm.ops.causal_conv1d.reference import causal_conv1d_reference
from mmssm.ops.causal_conv1d.vectorized import causal_conv1d_torch
from mmssm.ops.checks import (
    check_floating,
    check_floating_or_none,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.precision import autocast_off, working_dtype

_IMPLEMENTATIONS = {
    'reference': causal_conv1d_reference,
    'torch': causal_conv1d_torch,
}
_AVAILABLE = tuple(_IMPLEMENTATIONS)
_ACTIVATIONS = (None, 'silu', 'swish')


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    activation: str | None = None,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve every channel with its own filter over past frames.

    With ``w`` of ``width`` taps, the last of which meets the newest frame::

        y_n = activation(bias + sum_k w_k x_{n - (width - 1) + k})

    Frames before the first one are ``initial_states``.

    Args:
        x (Tensor): Input, shape ``(batch, dim, length)``. Any strides
            (channels-last views included), any length (0 and 1 included).
        weight (Tensor): Filters, shape ``(dim, width)``, width at least 1.
        bias (Tensor, optional): Shape ``(dim,)``.
        initial_states (Tensor, optional): The ``width - 1`` inputs before
            ``x``, oldest first, shape ``(batch, dim, width - 1)``. Default:
            zero.
        return_final_states (bool): Whether the last ``width - 1`` inputs
            (``initial_states`` included) are returned too. Default: False.
        activation (str, optional): None, ``'silu'`` or ``'swish'`` (the
            same).
        backend (str, optional): ``'reference'`` or ``'torch'``; None picks by
            device.

    Returns:
        Tensor or tuple[Tensor, Tensor]: Output like ``x``, in its dtype; with
        ``return_final_states`` also ``(batch, dim, width - 1)`` in the dtype
        of ``initial_states``, or of ``x`` without these.

    Shape notes:
        Products and sums are in float32 (float64 if ``x`` is float64), under
        autocast too. Every tensor gets gradients.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit or the activation is unknown.
        RuntimeError: If ``backend`` cannot serve this operator.

    Example:
        >>> import torch
        >>> from mmssm.ops import causal_conv1d
        >>> x, weight = torch.randn(2, 8, 5), torch.randn(8, 4)
        >>> y, last = causal_conv1d(x, weight, return_final_states=True)
        >>> y.shape, last.shape
        (torch.Size([2, 8, 5]), torch.Size([2, 8, 3]))

    Source:
        Layouts of ``causal_conv1d_fn`` of the ``causal-conv1d`` package.
    """
    check_floating(x=x, weight=weight)
    check_floating_or_none(bias=bias, initial_states=initial_states)
    check_ndim('x', x, '(batch, dim, length)')
    _check_filter(x, weight, bias, activation)
    batch, dim, length = x.shape
    history = weight.shape[1] - 1
    axes = '(batch, dim, width - 1)'
    check_shape('initial_states', initial_states, axes, (batch, dim, history))
    backend = choose_backend('causal_conv1d', backend, x, _AVAILABLE)
    dtype = working_dtype(x.dtype)
    with autocast_off(x):
        if length == 0:
            y = x.clone()
        else:
            state = initial_states
            if state is None:
                state = x.new_zeros(batch, dim, history)
            y = _IMPLEMENTATIONS[backend](
                x.to(dtype),
                weight.to(dtype),
                None if bias is None else bias.to(dtype),
                state.to(dtype),
            )
            y = _activate(y, activation).to(x.dtype)
        if not return_final_states:
            return y
        return y, _last_inputs(x, initial_states, history)


def causal_conv1d_step(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance `causal_conv1d` by one frame.

    It returns a new state and does not write into ``conv_state``.

    Args:
        x (Tensor): Input, shape ``(batch, dim)``.
        conv_state (Tensor): The ``width - 1`` inputs before it, oldest first,
            shape ``(batch, dim, width - 1)``.
        weight (Tensor): Filters, shape ``(dim, width)``.
        bias (Tensor, optional): Shape ``(dim,)``.
        activation (str, optional): None, ``'silu'`` or ``'swish'``.

    Returns:
        tuple[Tensor, Tensor]: Output like ``x``, in its dtype, and the new
        state, in the dtype of ``conv_state``.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit or the activation is unknown.

    Example:
        >>> import torch
        >>> from mmssm.ops import causal_conv1d_step
        >>> state, weight = torch.zeros(2, 8, 3), torch.randn(8, 4)
        >>> y, state = causal_conv1d_step(torch.randn(2, 8), state, weight)
        >>> y.shape, state.shape
        (torch.Size([2, 8]), torch.Size([2, 8, 3]))

    Source:
        ``causal_conv1d_update`` of the ``causal-conv1d`` package, made
        functional.
    """
    check_floating(x=x, conv_state=conv_state, weight=weight)
    check_floating_or_none(bias=bias)
    check_ndim('x', x, '(batch, dim)')
    _check_filter(x, weight, bias, activation)
    axes = '(batch, dim, width - 1)'
    check_shape(
        'conv_state', conv_state, axes, (*x.shape, weight.shape[1] - 1)
    )
    dtype = working_dtype(x.dtype)
    with autocast_off(x):
        window = torch.cat(
            (conv_state.to(dtype), x.to(dtype).unsqueeze(-1)), dim=-1
        )
        y = (window * weight.to(dtype)).sum(-1)
        if bias is not None:
            y = y + bias.to(dtype)
        y = _activate(y, activation).to(x.dtype)
        return y, window[..., 1:].to(conv_state.dtype)


def _activate(y: Tensor, activation: str | None) -> Tensor:
    return y if activation is None else F.silu(y)


def _last_inputs(
    x: Tensor, initial_states: Tensor | None, history: int
) -> Tensor:
    """Last ``history`` columns of [initial_states, x], as a new tensor."""
    length = x.shape[-1]
    if length >= history:
        last = x[..., length - history :]
        if initial_states is not None:
            last = last.to(initial_states.dtype)
        return last.clone()
    if initial_states is None:
        return F.pad(x, (history - length, 0))
    return torch.cat(
        (initial_states[..., length:], x.to(initial_states.dtype)), dim=-1
    )


def _check_filter(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> None:
    check_ndim('weight', weight, '(dim, width)')
    dim, width = x.shape[1], weight.shape[1]
    if width < 1:
        raise ValueError('`weight` has width 0; expected at least 1')
    check_shape('weight', weight, '(dim, width)', (dim, width))
    check_shape('bias', bias, '(dim,)', (dim,))
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f'`activation` is {activation!r}; expected one of {_ACTIVATIONS}'
        )
