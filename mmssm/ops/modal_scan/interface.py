"""Public functions of the modal scan: shapes, checks, dispatch."""

from torch import Tensor

from mmssm.ops.checks import (
    check_device,
    check_floating,
    check_floating_or_none,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.modal_scan.autograd import modal_scan_op
from mmssm.ops.modal_scan.reference import modal_scan_reference
from mmssm.ops.precision import autocast_off, working_dtype
from mmssm.ops.skip_and_gate import skip_and_gate

_AVAILABLE = ('reference', 'torch')


def modal_scan(
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    reverse: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run parallel modes whose poles change with every token.

    For every channel, with the poles and residues of its group::

        s_l(t) = a_{t,l} s_l(t-1) + eta_t               (real modes)
        w_k(t) = p_{t,k} w_k(t-1) + eta_t               (complex modes)
        y_t = sum_l c_l s_l(t) + sum_k (c'_k Re w_k(t) + c''_k Im w_k(t))
        out_t = (y_t + D x_t) * silu(z_t)

    With fixed poles this is a filter like that of `pole_scan`, with other
    zeros. With poles that change it is another operator, and a bounded one:
    if no pole has a modulus above r < 1, then from a zero state
    ``|y| <= sum_modes |c| max|eta| / (1 - r)`` for every sequence, ``|c|``
    being the length of ``(c', c'')`` for a pair.

    Args:
        eta (Tensor): Input, shape ``(batch, length, channels)``. Any strides,
            any length (0 and 1 included).
        real (Tensor): Real poles, shape ``(batch, length, groups, reals)``.
            Consecutive channels share a group; ``groups`` divides
            ``channels``.
        pair_re (Tensor): Real parts of one complex pole of each pair, shape
            ``(batch, length, groups, pairs)``. ``reals`` or ``pairs`` may be
            0.
        pair_im (Tensor): Their imaginary parts, shape like ``pair_re``.
        residues (Tensor): Weights of the modes, real ones first, then real
            parts, then imaginary parts, shape
            ``(groups, reals + 2 pairs)``.
        x (Tensor, optional): Input of the skip, shape like ``eta``; given
            together with ``D``.
        D (Tensor, optional): Skip, shape ``(channels,)``.
        z (Tensor, optional): Gate, shape like ``eta``.
        initial_state (Tensor, optional): Modes before the first processed
            token, in the order of ``residues``, shape
            ``(batch, reals + 2 pairs, channels)``. Default: zero.
        return_final_state (bool): Whether the modes after the last processed
            token are returned too. Default: False.
        reverse (bool): Whether the scan runs from the last token to the first
            (anticausal). Default: False.
        backend (str, optional): ``'reference'`` or ``'torch'``; None picks by
            device.

    Returns:
        Tensor or tuple[Tensor, Tensor]: Output like ``eta``, in its dtype;
        with ``return_final_state`` also ``(batch, modes, channels)`` in
        float32 (float64 if ``eta`` is float64).

    Shape notes:
        The recurrence is in float32 (float64 if ``eta`` is float64), under
        autocast too. Every tensor gets gradients.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit, or only one of ``x`` and ``D`` is
            given.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import modal_scan
        >>> eta, real = torch.randn(2, 9, 8), torch.rand(2, 9, 4, 1)
        >>> pair = 0.5 * torch.rand(2, 9, 4, 2)
        >>> modal_scan(eta, real, pair, pair, torch.ones(4, 5)).shape
        torch.Size([2, 9, 8])

    Source:
        Ours; the poles are those of TCP-SSM (arXiv 2605.11563). Bound and
        adjoint are derived in the README of this folder.
    """
    check_floating(
        eta=eta,
        real=real,
        pair_re=pair_re,
        pair_im=pair_im,
        residues=residues,
    )
    check_floating_or_none(x=x, D=D, z=z, initial_state=initial_state)
    check_device(
        eta=eta,
        real=real,
        pair_re=pair_re,
        pair_im=pair_im,
        residues=residues,
        x=x,
        D=D,
        z=z,
        initial_state=initial_state,
    )
    _check_shapes(eta, real, pair_re, pair_im, residues, x, D, z)
    shape = (eta.shape[0], residues.shape[1], eta.shape[2])
    axes = '(batch, reals + 2 pairs, channels)'
    check_shape('initial_state', initial_state, axes, shape)
    backend = choose_backend('modal_scan', backend, eta, _AVAILABLE)
    dtype = working_dtype(eta.dtype)
    with autocast_off(eta):
        if backend == 'reference' or eta.numel() == 0:
            if initial_state is None:
                state = eta.new_zeros(shape, dtype=dtype)
            else:
                state = initial_state.to(dtype, copy=True)
            y = eta.to(dtype, copy=True)
            if eta.numel():
                modes = (real, pair_re, pair_im, residues)
                y, state = modal_scan_reference(
                    y, *(t.to(dtype) for t in modes), state, reverse
                )
            out = skip_and_gate(y, x, D, z, channel_dim=-1).to(eta.dtype)
        else:
            out, state, _ = modal_scan_op(
                eta,
                real,
                pair_re,
                pair_im,
                residues,
                x,
                D,
                z,
                initial_state,
                reverse,
                backend,
            )
    return (out, state) if return_final_state else out


def modal_scan_step(
    state: Tensor,
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance `modal_scan` by one token.

    It returns a new state and does not write into ``state``.

    Args:
        state (Tensor): Modes so far, shape
            ``(batch, reals + 2 pairs, channels)``.
        eta (Tensor): Input, shape ``(batch, channels)``.
        real (Tensor): Real poles, shape ``(batch, groups, reals)``.
        pair_re (Tensor): Shape ``(batch, groups, pairs)``.
        pair_im (Tensor): Shape ``(batch, groups, pairs)``.
        residues (Tensor): Shape ``(groups, reals + 2 pairs)``.
        x (Tensor, optional): Input of the skip, shape like ``eta``.
        D (Tensor, optional): Skip, shape ``(channels,)``.
        z (Tensor, optional): Gate, shape like ``eta``.
        backend (str, optional): As in `modal_scan`.

    Returns:
        tuple[Tensor, Tensor]: Output like ``eta``, in its dtype, and the new
        state in float32 (float64 if ``eta`` is float64).

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit, or only one of ``x`` and ``D`` is
            given.

    Example:
        >>> import torch
        >>> from mmssm.ops import modal_scan_step
        >>> state, real = torch.zeros(2, 1, 8), torch.rand(2, 4, 1)
        >>> pair, residues = torch.zeros(2, 4, 0), torch.ones(4, 1)
        >>> y, state = modal_scan_step(
        ...     state, torch.randn(2, 8), real, pair, pair, residues
        ... )
        >>> y.shape, state.shape
        (torch.Size([2, 8]), torch.Size([2, 1, 8]))

    Source:
        Ours; see `modal_scan`.
    """
    check_floating(
        state=state, eta=eta, real=real, pair_re=pair_re, pair_im=pair_im
    )
    check_floating_or_none(x=x, z=z)
    check_device(
        state=state,
        eta=eta,
        real=real,
        pair_re=pair_re,
        pair_im=pair_im,
        residues=residues,
        x=x,
        D=D,
        z=z,
    )
    check_ndim('eta', eta, '(batch, channels)')
    check_ndim('real', real, '(batch, groups, reals)')
    check_ndim('pair_re', pair_re, '(batch, groups, pairs)')
    check_ndim('pair_im', pair_im, '(batch, groups, pairs)')
    check_shape('x', x, '(batch, channels)', tuple(eta.shape))
    check_shape('z', z, '(batch, channels)', tuple(eta.shape))
    out, state = modal_scan(
        eta.unsqueeze(1),
        real.unsqueeze(1),
        pair_re.unsqueeze(1),
        pair_im.unsqueeze(1),
        residues,
        x=None if x is None else x.unsqueeze(1),
        D=D,
        z=None if z is None else z.unsqueeze(1),
        initial_state=state,
        return_final_state=True,
        backend=backend,
    )
    return out.squeeze(1), state


def _check_shapes(
    eta: Tensor,
    real: Tensor,
    pair_re: Tensor,
    pair_im: Tensor,
    residues: Tensor,
    x: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
) -> None:
    check_ndim('eta', eta, '(batch, length, channels)')
    check_ndim('residues', residues, '(groups, reals + 2 pairs)')
    batch, length, channels = eta.shape
    groups = residues.shape[0]
    if groups < 1 or channels % groups:
        raise ValueError(
            f'`residues` has {groups} groups; expected a divisor of channels '
            f'= {channels}'
        )
    check_ndim('real', real, '(batch, length, groups, reals)')
    check_ndim('pair_re', pair_re, '(batch, length, groups, pairs)')
    reals, pairs = real.shape[-1], pair_re.shape[-1]
    axes, shape = '(batch, length, groups, reals)', (batch, length, groups)
    check_shape('real', real, axes, (*shape, reals))
    axes = '(batch, length, groups, pairs)'
    check_shape('pair_re', pair_re, axes, (*shape, pairs))
    check_shape('pair_im', pair_im, axes, (*shape, pairs))
    axes = '(groups, reals + 2 pairs)'
    check_shape('residues', residues, axes, (groups, reals + 2 * pairs))
    if not residues.shape[1]:
        raise ValueError('`residues` has no mode; expected at least 1')
    check_shape('x', x, '(batch, length, channels)', tuple(eta.shape))
    check_shape('z', z, '(batch, length, channels)', tuple(eta.shape))
    check_shape('D', D, '(channels,)', (channels,))
    if (x is None) != (D is None):
        missing, given = ('x', 'D') if x is None else ('D', 'x')
        raise ValueError(
            f'`{given}` is given without `{missing}`; the skip D x needs both'
        )
