"""Public functions of the causal convolution: shapes, checks, dispatch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmssm.ops.causal_conv1d.autograd import causal_conv1d_op
from mmssm.ops.causal_conv1d.reference import causal_conv1d_reference
from mmssm.ops.checks import (
    check_device,
    check_floating,
    check_floating_or_none,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.precision import autocast_off, working_dtype

_AVAILABLE = ('reference', 'torch', 'native', 'triton')
_MAX_WIDTH = 8
_ACTIVATIONS = (None, 'silu', 'swish')


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    activation: str | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve every channel with its own filter over past frames.

    With ``w`` of ``width`` taps, the last of which meets the newest frame::

        y_n = activation(bias + sum_k w_k x_{n - (width - 1) + k})

    Frames before the first one are ``initial_states``. With ``reverse`` the
    filter runs from the last frame to the first, over frames after its own:
    ``x_{n + (width - 1) - k}`` in place of ``x_{n - (width - 1) + k}``.

    Args:
        x (Tensor): Input, shape ``(batch, dim, length)``. Any strides
            (channels-last views included), any length (0 and 1 included).
        weight (Tensor): Filters, shape ``(dim, width)``, width 1 to 8.
        bias (Tensor, optional): Shape ``(dim,)``.
        initial_states (Tensor, optional): The ``width - 1`` inputs processed
            before ``x``, oldest first, shape ``(batch, dim, width - 1)``.
            Default: zero.
        return_final_states (bool): Whether the last ``width - 1`` processed
            inputs (``initial_states`` included) are returned too, oldest
            first. Default: False.
        activation (str, optional): None, ``'silu'`` or ``'swish'`` (the
            same).
        reverse (bool): Whether the filter is anticausal. Default: False.
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'`` or
            ``'triton'``; None picks by device.

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
    check_device(x=x, weight=weight, bias=bias, initial_states=initial_states)
    check_ndim('x', x, '(batch, dim, length)')
    _check_filter(x, weight, bias, activation)
    batch, dim, length = x.shape
    history = weight.shape[1] - 1
    axes = '(batch, dim, width - 1)'
    check_shape('initial_states', initial_states, axes, (batch, dim, history))
    backend = choose_backend('causal_conv1d', backend, x, _AVAILABLE)
    with autocast_off(x):
        if x.numel() == 0:
            y = x.clone()
        elif backend == 'reference':
            y = _run_reference(
                x, weight, bias, initial_states, activation, reverse
            )
        else:
            silu = activation is not None
            y = causal_conv1d_op(
                x, weight, bias, initial_states, silu, reverse, backend
            )
        if not return_final_states:
            return y
        return y, _last_inputs(x, initial_states, history, reverse)


def causal_conv1d_step(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    backend: str | None = None,
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
        backend (str, optional): As in `causal_conv1d`. None is ``'torch'``
            on every device: for a single frame starting a kernel takes
            longer.

    Returns:
        tuple[Tensor, Tensor]: Output like ``x``, in its dtype, and the new
        state, in the dtype of ``conv_state``.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit or the activation is unknown.
        RuntimeError: If ``backend`` cannot serve the call.

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
    check_device(x=x, conv_state=conv_state, weight=weight, bias=bias)
    check_ndim('x', x, '(batch, dim)')
    _check_filter(x, weight, bias, activation)
    axes = '(batch, dim, width - 1)'
    check_shape(
        'conv_state', conv_state, axes, (*x.shape, weight.shape[1] - 1)
    )
    backend = choose_backend(
        'causal_conv1d_step', backend or 'torch', x, _AVAILABLE
    )
    if backend in ('native', 'triton'):
        y, last = causal_conv1d(
            x.unsqueeze(-1),
            weight,
            bias,
            initial_states=conv_state,
            return_final_states=True,
            activation=activation,
            backend=backend,
        )
        return y.squeeze(-1), last
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


def _run_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    activation: str | None,
    reverse: bool,
) -> Tensor:
    dtype = working_dtype(x.dtype)
    if initial_states is None:
        initial_states = x.new_zeros(*x.shape[:2], weight.shape[1] - 1)
    y = causal_conv1d_reference(
        x.to(dtype),
        weight.to(dtype),
        None if bias is None else bias.to(dtype),
        initial_states.to(dtype),
        reverse,
    )
    return _activate(y, activation).to(x.dtype)


def _activate(y: Tensor, activation: str | None) -> Tensor:
    return y if activation is None else F.silu(y)


def _last_inputs(
    x: Tensor, initial_states: Tensor | None, history: int, reverse: bool
) -> Tensor:
    """Last ``history`` processed columns of [initial_states, x], copied."""
    length = x.shape[-1]
    last = x[..., :history].flip(-1) if reverse else x[..., -history:]
    if not history:
        last = x[..., :0]
    if initial_states is not None:
        last = last.to(initial_states.dtype)
    if length >= history:
        return last.clone()
    if initial_states is None:
        return F.pad(last, (history - length, 0))
    return torch.cat((initial_states[..., length:], last), dim=-1)


def _check_filter(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> None:
    check_ndim('weight', weight, '(dim, width)')
    dim, width = x.shape[1], weight.shape[1]
    if not 1 <= width <= _MAX_WIDTH:
        raise ValueError(
            f'`weight` has width {width}; expected 1 to {_MAX_WIDTH}'
        )
    check_shape('weight', weight, '(dim, width)', (dim, width))
    check_shape('bias', bias, '(dim,)', (dim,))
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f'`activation` is {activation!r}; expected one of {_ACTIVATIONS}'
        )
