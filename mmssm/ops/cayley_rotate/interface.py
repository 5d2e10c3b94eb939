"""Public functions of the Cayley rotation: shapes, checks, dispatch."""

from torch import Tensor

from mmssm.ops.cayley_rotate.autograd import cayley_rotate_op
from mmssm.ops.cayley_rotate.reference import (
    cayley_matrix_reference,
    cayley_rotate_reference,
)
from mmssm.ops.cayley_rotate.sizes import LARGEST_SYSTEM
from mmssm.ops.cayley_rotate.vectorized import cayley_rotate_torch
from mmssm.ops.checks import (
    check_device,
    check_floating,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.precision import autocast_off, working_dtype

_IMPLEMENTATIONS = {
    'reference': cayley_rotate_reference,
    'torch': cayley_rotate_torch,
}
_AVAILABLE = (*_IMPLEMENTATIONS, 'triton')


def cayley_rotate(
    state: Tensor,
    U: Tensor,
    V: Tensor,
    theta: Tensor,
    backend: str | None = None,
) -> Tensor:
    """Rotate a state with a low-rank Cayley transform.

    ::

        S = U diag(theta) V^T - V diag(theta) U^T
        Z = (I - S/2)^-1 (I + S/2)
        h <- h Z

    S is skew, so Z is orthogonal and the norm of every row of ``h`` is
    preserved for any ``U``, ``V`` and ``theta``.

    Args:
        state (Tensor): State, shape ``(batch, heads, headdim, state)``.
        U (Tensor): Shape ``(batch, heads, state, rank)``.
        V (Tensor): Shape ``(batch, heads, state, rank)``.
        theta (Tensor): Rotation strengths, shape ``(batch, heads, rank)``.
        backend (str, optional): ``'reference'`` (dense solve of size
            ``state``), ``'torch'`` or ``'triton'`` (solve of size ``2 rank``
            where that is smaller; the kernel solves for at most 64 unknowns);
            None picks by device and size.

    Returns:
        Tensor: Rotated state like ``state``, in float32 (float64 if ``state``
        is float64).

    Shape notes:
        Everything is computed in float32 (float64 if ``state`` is float64),
        under autocast too. Every tensor gets gradients.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import cayley_rotate
        >>> state = torch.randn(1, 2, 16, 8)
        >>> U, V = torch.randn(2, 1, 2, 8, 3)
        >>> rotated = cayley_rotate(state, U, V, torch.ones(1, 2, 3))
        >>> torch.allclose(rotated.norm(dim=-1), state.norm(dim=-1))
        True

    Source:
        SurgicalMamba (arXiv 2605.14889), equations S-11 to S-15; the rank-2r
        form is derived in the README of this folder.
    """
    check_floating(state=state, U=U, V=V, theta=theta)
    check_device(state=state, U=U, V=V, theta=theta)
    check_ndim('state', state, '(batch, heads, headdim, state)')
    check_ndim('U', U, '(batch, heads, state, rank)')
    batch, heads, _, d_state = state.shape
    axes = '(batch, heads, state, rank)'
    check_shape('U', U, axes, (batch, heads, d_state, U.shape[-1]))
    _check_planes(U, V, theta)
    if backend is None and min(2 * U.shape[-1], d_state) > LARGEST_SYSTEM:
        backend = 'torch'
    backend = choose_backend('cayley_rotate', backend, state, _AVAILABLE)
    if not state.numel() or not theta.numel():
        backend = 'reference'  # nothing that a kernel could start on
    dtype = working_dtype(state.dtype)
    with autocast_off(state):
        if backend == 'triton':
            return cayley_rotate_op(state, U, V, theta, backend)
        return _IMPLEMENTATIONS[backend](
            state.to(dtype), U.to(dtype), V.to(dtype), theta.to(dtype)
        )


def cayley_matrix(U: Tensor, V: Tensor, theta: Tensor) -> Tensor:
    """Form the rotation matrix Z that `cayley_rotate` applies.

    For views and tests; models do not need the matrix.

    Args:
        U (Tensor): Shape ``(batch, heads, state, rank)``.
        V (Tensor): Shape ``(batch, heads, state, rank)``.
        theta (Tensor): Rotation strengths, shape ``(batch, heads, rank)``.

    Returns:
        Tensor: Orthogonal matrices ``(batch, heads, state, state)``, in
        float32 (float64 if ``U`` is float64).

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit.

    Example:
        >>> import torch
        >>> from mmssm.ops import cayley_matrix
        >>> U, V = torch.randn(2, 1, 2, 8, 3)
        >>> Z = cayley_matrix(U, V, torch.ones(1, 2, 3))
        >>> torch.allclose(Z @ Z.mT, torch.eye(8), atol=1e-5)
        True

    Source:
        SurgicalMamba (arXiv 2605.14889), equations S-13 and S-14.
    """
    check_floating(U=U, V=V, theta=theta)
    check_ndim('U', U, '(batch, heads, state, rank)')
    _check_planes(U, V, theta)
    dtype = working_dtype(U.dtype)
    with autocast_off(U):
        return cayley_matrix_reference(
            U.to(dtype), V.to(dtype), theta.to(dtype)
        )


def _check_planes(U: Tensor, V: Tensor, theta: Tensor) -> None:
    batch, heads, _, rank = U.shape
    check_shape('V', V, '(batch, heads, state, rank)', tuple(U.shape))
    check_shape('theta', theta, '(batch, heads, rank)', (batch, heads, rank))
