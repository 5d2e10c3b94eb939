"""Public functions of the pole scan: shapes, checks, dispatch."""

from torch import Tensor

from mmssm.ops.checks import (
    check_device,
    check_floating,
    check_floating_or_none,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.pole_scan.autograd import pole_scan_op
from mmssm.ops.pole_scan.reference import pole_scan_reference
from mmssm.ops.pole_scan.sizes import fits_kernels
from mmssm.ops.precision import autocast_off, working_dtype
from mmssm.ops.skip_and_gate import skip_and_gate

_AVAILABLE = ('reference', 'torch', 'native', 'triton')


def pole_scan(
    eta: Tensor,
    q: Tensor,
    x: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial_history: Tensor | None = None,
    return_final_history: bool = False,
    reverse: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run a recursive filter whose coefficients change with every token.

    For every channel, with the coefficients of its group::

        y_t = eta_t - sum_i q_{t,i} y_{t-i}
        out_t = (y_t + D x_t) * silu(z_t)

    Poles inside the unit circle at every token do not bound a filter whose
    coefficients change: an input exists that makes it grow. What overflows
    is returned as infinity or NaN.

    Args:
        eta (Tensor): Input, shape ``(batch, length, channels)``. Any strides
            (a transposed channels-first tensor included), any length (0 and
            1 included).
        q (Tensor): Coefficients of the denominator without the leading 1,
            shape ``(batch, length, groups, order)``. Consecutive channels
            share a group; ``groups`` divides ``channels``. Keep them in
            float32: rounding them to half precision moves poles outside the
            unit circle.
        x (Tensor, optional): Input of the skip, shape like ``eta``; given
            together with ``D``.
        D (Tensor, optional): Skip, shape ``(channels,)``.
        z (Tensor, optional): Gate, shape like ``eta``.
        initial_history (Tensor, optional): The ``order`` outputs ``y`` before
            the first processed token, most recent first, shape
            ``(batch, order, channels)``. Default: zero.
        return_final_history (bool): Whether the last ``order`` outputs ``y``
            are returned too. Default: False.
        reverse (bool): Whether the scan runs from the last token to the first
            (anticausal). Default: False.
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'`` or
            ``'triton'``; None picks by device.

    Returns:
        Tensor or tuple[Tensor, Tensor]: Output like ``eta``, in its dtype;
        with ``return_final_history`` also ``(batch, order, channels)``, most
        recent first, in float32 (float64 if ``eta`` is float64).

    Shape notes:
        The recurrence is sequential and in float32 (float64 if ``eta`` is
        float64), under autocast too. Every tensor gets gradients.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit, or only one of ``x`` and ``D`` is
            given.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import pole_scan
        >>> eta, q = torch.randn(2, 9, 8), 0.1 * torch.randn(2, 9, 4, 3)
        >>> y, history = pole_scan(eta, q, return_final_history=True)
        >>> y.shape, history.shape
        (torch.Size([2, 9, 8]), torch.Size([2, 3, 8]))

    Source:
        TCP-SSM (arXiv 2605.11563), equation 14; adjoint re-derived in the
        README of this folder.
    """
    check_floating(eta=eta, q=q)
    check_floating_or_none(x=x, D=D, z=z, initial_history=initial_history)
    check_device(eta=eta, q=q, x=x, D=D, z=z, initial_history=initial_history)
    check_ndim('eta', eta, '(batch, length, channels)')
    check_ndim('q', q, '(batch, length, groups, order)')
    batch, length, channels = eta.shape
    axes = '(batch, length, groups, order)'
    check_shape('q', q, axes, (batch, length, *q.shape[2:]))
    check_shape('x', x, '(batch, length, channels)', tuple(eta.shape))
    check_shape('z', z, '(batch, length, channels)', tuple(eta.shape))
    check_shape('D', D, '(channels,)', (channels,))
    _check_groups(q, channels)
    _check_skip(x, D)
    axes = '(batch, order, channels)'
    history_shape = (batch, q.shape[-1], channels)
    check_shape('initial_history', initial_history, axes, history_shape)
    if backend is None and not fits_kernels(q.shape[-1], eta):
        backend = 'torch'
    backend = choose_backend('pole_scan', backend, eta, _AVAILABLE)
    dtype = working_dtype(eta.dtype)
    with autocast_off(eta):
        if backend == 'reference' or length == 0 or eta.numel() == 0:
            history = initial_history
            if history is None:
                history = eta.new_zeros(history_shape, dtype=dtype)
            y, history = eta.to(dtype), history.to(dtype)
            if length:
                y, history = pole_scan_reference(
                    y, q.to(dtype), history, reverse
                )
            out = skip_and_gate(y, x, D, z, channel_dim=-1).to(eta.dtype)
            if not length:
                out, history = out.clone(), history.clone()
        else:
            out, history, _ = pole_scan_op(
                eta, q, x, D, z, initial_history, reverse, backend
            )
    return (out, history) if return_final_history else out


def pole_scan_step(
    history: Tensor,
    eta: Tensor,
    q: Tensor,
    x: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance `pole_scan` by one token.

    Calling it token by token gives what `pole_scan` gives for the whole
    sequence. It returns a new history and does not write into ``history``.

    Args:
        history (Tensor): The last ``order`` outputs ``y``, most recent first,
            shape ``(batch, order, channels)``.
        eta (Tensor): Input, shape ``(batch, channels)``.
        q (Tensor): Coefficients, shape ``(batch, groups, order)``.
        x (Tensor, optional): Input of the skip, shape like ``eta``.
        D (Tensor, optional): Skip, shape ``(channels,)``.
        z (Tensor, optional): Gate, shape like ``eta``.
        backend (str, optional): As in `pole_scan`.

    Returns:
        tuple[Tensor, Tensor]: Output like ``eta``, in its dtype, and the new
        history in float32 (float64 if ``eta`` is float64).

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit, or only one of ``x`` and ``D`` is
            given.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import pole_scan_step
        >>> history, q = torch.zeros(2, 3, 8), 0.1 * torch.randn(2, 4, 3)
        >>> y, history = pole_scan_step(history, torch.randn(2, 8), q)
        >>> y.shape, history.shape
        (torch.Size([2, 8]), torch.Size([2, 3, 8]))

    Source:
        TCP-SSM (arXiv 2605.11563), equation 14.
    """
    check_floating(history=history, eta=eta, q=q)
    check_floating_or_none(x=x, D=D, z=z)
    check_device(history=history, eta=eta, q=q, x=x, D=D, z=z)
    check_ndim('eta', eta, '(batch, channels)')
    check_ndim('q', q, '(batch, groups, order)')
    check_shape('x', x, '(batch, channels)', tuple(eta.shape))
    check_shape('z', z, '(batch, channels)', tuple(eta.shape))
    axes = '(batch, groups, order)'
    check_shape('q', q, axes, (eta.shape[0], *q.shape[1:]))
    axes = '(batch, order, channels)'
    expected = (eta.shape[0], q.shape[-1], eta.shape[1])
    check_shape('history', history, axes, expected)
    out, history = pole_scan(
        eta.unsqueeze(1),
        q.unsqueeze(1),
        x=None if x is None else x.unsqueeze(1),
        D=D,
        z=None if z is None else z.unsqueeze(1),
        initial_history=history,
        return_final_history=True,
        backend=backend,
    )
    return out.squeeze(1), history


def _check_groups(q: Tensor, channels: int) -> None:
    groups, order = q.shape[-2:]
    if groups < 1 or channels % groups:
        raise ValueError(
            f'`q` has {groups} groups; expected a divisor of channels = '
            f'{channels}'
        )
    if order < 1:
        raise ValueError('`q` has order 0; expected at least 1')


def _check_skip(x: Tensor | None, D: Tensor | None) -> None:
    if (x is None) != (D is None):
        missing, given = ('x', 'D') if x is None else ('D', 'x')
        raise ValueError(
            f'`{given}` is given without `{missing}`; the skip D x needs both'
        )
