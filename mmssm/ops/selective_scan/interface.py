"""Public functions of the selective scan: shapes, checks, dispatch."""

import torch
from torch import Tensor

from mmssm.ops.checks import (
    check_device,
    check_floating,
    check_floating_or_none,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.precision import autocast_off, working_dtype
from mmssm.ops.selective_scan.autograd import selective_scan_op
from mmssm.ops.selective_scan.reference import selective_scan_reference
from mmssm.ops.selective_scan.sizes import LARGEST_STATE
from mmssm.ops.selective_scan.step_size import step_size
from mmssm.ops.skip_and_gate import skip_and_gate

_AVAILABLE = ('reference', 'torch', 'native', 'triton')


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    initial_state: Tensor | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scan a sequence with the selective state-space model of Mamba.

    For every channel, with a state ``h`` of ``state`` numbers::

        dt_t = softplus(delta_t + delta_bias)    (softplus, bias: as asked)
        h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t
        y_t = (C_t . h_t + D u_t) * silu(z_t)

    Names, order and layouts of the arguments up to ``return_last_state`` are
    those of ``selective_scan_fn`` of ``mamba_ssm``.

    Args:
        u (Tensor): Input, shape ``(batch, dim, length)``. Any strides (a
            transposed channels-last tensor included), any length (0 and 1
            included).
        delta (Tensor): Step size before bias and softplus, shape like ``u``.
        A (Tensor): Decay rates, negative, shape ``(dim, state)``; real.
        B (Tensor): Input matrix, shape ``(batch, state, length)``, with
            groups of consecutive channels ``(batch, groups, state, length)``,
            or constant ``(dim, state)``. The constant form is for
            completeness: it is computed as one group per channel.
        C (Tensor): Output matrix, in any of the forms of ``B``.
        D (Tensor, optional): Skip, shape ``(dim,)``.
        z (Tensor, optional): Gate, shape like ``u``.
        delta_bias (Tensor, optional): Added to ``delta``, shape ``(dim,)``.
        delta_softplus (bool): Whether softplus is applied to the step size.
            Default: False.
        return_last_state (bool): Whether the state after the last processed
            token is returned too. Default: False.
        initial_state (Tensor, optional): State before the first processed
            token, shape ``(batch, dim, state)``. Default: zero.
        reverse (bool): Whether the scan runs from the last token to the first
            (anticausal). Default: False.
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'`` or
            ``'triton'``; None picks by device.

    Returns:
        Tensor or tuple[Tensor, Tensor]: Output like ``u``, in its dtype; with
        ``return_last_state`` also ``(batch, dim, state)`` in float32 (float64
        if ``u`` is float64).

    Shape notes:
        Step size, decay, state and sums are in float32 (float64 if ``u`` is
        float64), under autocast too. Every tensor gets gradients.

    Raises:
        TypeError: If a tensor is not real floating (a complex ``A`` is not
            supported).
        ValueError: If a shape does not fit.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import selective_scan
        >>> u, delta = torch.randn(2, 8, 9), torch.rand(2, 8, 9)
        >>> A, B = -torch.ones(8, 4), torch.randn(2, 4, 9)
        >>> y, state = selective_scan(
        ...     u, delta, A, B, B, return_last_state=True
        ... )
        >>> y.shape, state.shape
        (torch.Size([2, 8, 9]), torch.Size([2, 8, 4]))

    Source:
        Gu and Dao, "Mamba" (2023), section 3; adjoint re-derived in the
        README of this folder.
    """
    check_floating(u=u, delta=delta, A=A, B=B, C=C)
    check_floating_or_none(
        D=D, z=z, delta_bias=delta_bias, initial_state=initial_state
    )
    check_device(
        u=u,
        delta=delta,
        A=A,
        B=B,
        C=C,
        D=D,
        z=z,
        delta_bias=delta_bias,
        initial_state=initial_state,
    )
    check_ndim('u', u, '(batch, dim, length)')
    batch, dim, length = u.shape
    axes = '(batch, dim, length)'
    check_shape('delta', delta, axes, tuple(u.shape))
    check_shape('z', z, axes, tuple(u.shape))
    _check_parameters(A, D, delta_bias, dim)
    d_state = A.shape[1]
    B = _with_groups('B', B, u, d_state)
    C = _with_groups('C', C, u, d_state)
    B, C = _with_same_groups(B, C)
    axes = '(batch, dim, state)'
    check_shape('initial_state', initial_state, axes, (batch, dim, d_state))
    if backend is None and u.is_cuda and d_state > LARGEST_STATE:
        backend = 'torch'
    backend = choose_backend('selective_scan', backend, u, _AVAILABLE)
    with autocast_off(u):
        if backend == 'reference' or u.numel() == 0:
            y, state = _run_reference(
                u,
                delta,
                A,
                B,
                C,
                D,
                z,
                delta_bias,
                initial_state,
                delta_softplus,
                reverse,
            )
        else:
            y, state, _ = selective_scan_op(
                u,
                delta,
                A,
                B,
                C,
                D,
                z,
                delta_bias,
                initial_state,
                delta_softplus,
                reverse,
                backend,
            )
    return (y, state) if return_last_state else y


def selective_scan_step(
    state: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance `selective_scan` by one token.

    Calling it token by token gives what `selective_scan` gives for the whole
    sequence. It returns a new state and does not write into ``state``.

    Args:
        state (Tensor): State so far, shape ``(batch, dim, state)``.
        u (Tensor): Input, shape ``(batch, dim)``.
        delta (Tensor): Step size before bias and softplus, shape like ``u``.
        A (Tensor): Decay rates, negative, shape ``(dim, state)``.
        B (Tensor): Input matrix, shape ``(batch, state)`` or
            ``(batch, groups, state)``.
        C (Tensor): Output matrix, in either form of ``B``.
        D (Tensor, optional): Skip, shape ``(dim,)``.
        z (Tensor, optional): Gate, shape like ``u``.
        delta_bias (Tensor, optional): Added to ``delta``, shape ``(dim,)``.
        delta_softplus (bool): Whether softplus is applied to the step size.
            Default: False.
        backend (str, optional): As in `selective_scan`.

    Returns:
        tuple[Tensor, Tensor]: Output like ``u``, in its dtype, and the new
        state in float32 (float64 if ``u`` is float64).

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import selective_scan_step
        >>> state, A = torch.zeros(2, 8, 4), -torch.ones(8, 4)
        >>> u, delta, B = torch.randn(2, 8), torch.rand(2, 8), torch.ones(2, 4)
        >>> y, state = selective_scan_step(state, u, delta, A, B, B)
        >>> y.shape, state.shape
        (torch.Size([2, 8]), torch.Size([2, 8, 4]))

    Source:
        ``selective_state_update`` of ``mamba_ssm``, made functional.
    """
    check_floating(state=state, u=u, delta=delta, A=A, B=B, C=C)
    check_floating_or_none(D=D, z=z, delta_bias=delta_bias)
    check_device(
        state=state,
        u=u,
        delta=delta,
        A=A,
        B=B,
        C=C,
        D=D,
        z=z,
        delta_bias=delta_bias,
    )
    check_ndim('u', u, '(batch, dim)')
    check_shape('delta', delta, '(batch, dim)', tuple(u.shape))
    check_shape('z', z, '(batch, dim)', tuple(u.shape))
    _check_parameters(A, D, delta_bias, u.shape[1])
    axes = '(batch, dim, state)'
    check_shape('state', state, axes, (*u.shape, A.shape[1]))
    for name, matrix in (('B', B), ('C', C)):
        if matrix.ndim not in (2, 3):
            raise ValueError(
                f'`{name}` has shape {tuple(matrix.shape)}; expected '
                '(batch, state) or (batch, groups, state)'
            )
    y, state = selective_scan(
        u.unsqueeze(-1),
        delta.unsqueeze(-1),
        A,
        B.unsqueeze(-1),
        C.unsqueeze(-1),
        D=D,
        z=None if z is None else z.unsqueeze(-1),
        delta_bias=delta_bias,
        delta_softplus=delta_softplus,
        return_last_state=True,
        initial_state=state,
        backend=backend,
    )
    return y.squeeze(-1), state


def _run_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    dtype = working_dtype(u.dtype)
    if initial_state is None:
        state = u.new_zeros(*u.shape[:2], A.shape[1], dtype=dtype)
    else:
        state = initial_state.to(dtype, copy=True)
    if u.numel() == 0:
        return u.clone(), state
    u_work = u.to(dtype)
    y, state = selective_scan_reference(
        u_work,
        step_size(delta.to(dtype), delta_bias, delta_softplus),
        A.to(dtype),
        B.to(dtype),
        C.to(dtype),
        state,
        reverse,
    )
    return skip_and_gate(y, u_work, D, z, channel_dim=-2).to(u.dtype), state


def _check_parameters(
    A: Tensor, D: Tensor | None, delta_bias: Tensor | None, dim: int
) -> None:
    check_ndim('A', A, '(dim, state)')
    check_shape('A', A, '(dim, state)', (dim, A.shape[1]))
    check_shape('D', D, '(dim,)', (dim,))
    check_shape('delta_bias', delta_bias, '(dim,)', (dim,))
    if not A.shape[1]:
        raise ValueError('`A` has state 0; expected at least 1')


def _with_groups(name: str, matrix: Tensor, u: Tensor, d_state: int) -> Tensor:
    """View B or C as ``(batch, groups, state, length)``."""
    batch, dim, length = u.shape
    if matrix.ndim == 2:
        check_shape(name, matrix, '(dim, state)', (dim, d_state))
        return matrix[None, :, :, None].expand(batch, -1, -1, length)
    if matrix.ndim == 3:
        axes = '(batch, state, length)'
        check_shape(name, matrix, axes, (batch, d_state, length))
        return matrix.unsqueeze(1)
    check_ndim(name, matrix, '(batch, groups, state, length)')
    groups = matrix.shape[1]
    axes = '(batch, groups, state, length)'
    check_shape(name, matrix, axes, (batch, groups, d_state, length))
    if groups < 1 or dim % groups:
        raise ValueError(
            f'`{name}` has {groups} groups; expected a divisor of dim = {dim}'
        )
    return matrix


def _with_same_groups(B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat the groups of one so that both have as many."""
    groups = max(B.shape[1], C.shape[1])
    if groups % B.shape[1] or groups % C.shape[1]:
        raise ValueError(
            f'`B` has {B.shape[1]} groups and `C` has {C.shape[1]}; expected '
            'the same number, or one that divides the other'
        )
    return tuple(
        matrix
        if matrix.shape[1] == groups
        else torch.repeat_interleave(matrix, groups // matrix.shape[1], dim=1)
        for matrix in (B, C)
    )
