"""Public function of the pole denominator: shapes, checks, dispatch."""

from torch import Tensor

from mmssm.ops.checks import (
    check_device,
    check_floating,
    check_floating_or_none,
    check_ndim,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.pole_denominator.autograd import pole_denominator_op
from mmssm.ops.pole_denominator.poles import poles_torch
from mmssm.ops.pole_denominator.reference import pole_denominator_reference
from mmssm.ops.pole_denominator.vectorized import pole_denominator_torch
from mmssm.ops.pole_scan.sizes import fits_kernels
from mmssm.ops.precision import autocast_off, working_dtype

_IMPLEMENTATIONS = {
    'reference': pole_denominator_reference,
    'torch': pole_denominator_torch,
}
_AVAILABLE = (*_IMPLEMENTATIONS, 'native', 'triton')


def pole_denominator(
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None = None,
    theta_mod: Tensor | None = None,
    eps: float = 0.01,
    delta_min: float = 0.5,
    delta_0: float = 1.0,
    lambda_theta: float = 0.1,
    backend: str | None = None,
) -> Tensor:
    """Turn poles and their modulation into filter coefficients.

    Unconstrained parameters give stable base poles, ``pairs`` complex pairs
    and ``reals`` real ones per group::

        rho = (1 - eps) sigmoid(rho_hat)        theta = pi sigmoid(theta_hat)
        rho_R = (1 - eps) sigmoid(real_rho_hat)     s = tanh(sign_hat)

    which every token scales::

        s_rho = (delta_min + softplus(rho_mod)) / delta_0
        s_theta = 1 + lambda_theta tanh(theta_mod)
        a_t = s rho_R^s_rho     rho_t = rho^s_rho
        theta_t = clip(s_theta theta, 0, pi)

    and whose factors are multiplied out::

        1 + sum_i q_{t,i} z^-i = prod (1 - a_t z^-1)
            * prod (1 - 2 rho_t cos(theta_t) z^-1 + rho_t^2 z^-2)

    No pole has a modulus above ``(1 - eps) ** (delta_min / delta_0)``.

    Args:
        rho_hat (Tensor): Radii of the pairs, shape ``(groups, pairs)``.
        theta_hat (Tensor): Angles of the pairs, shape ``(groups, pairs)``.
        real_rho_hat (Tensor): Radii of the real poles, shape
            ``(groups, reals)``.
        sign_hat (Tensor): Signs of the real poles, shape ``(groups, reals)``.
            ``pairs`` or ``reals`` may be 0.
        rho_mod (Tensor, optional): Modulation of the radii, shape
            ``(batch, length, 1)`` (shared by all groups) or
            ``(batch, length, groups)``. Default: no modulation, s_rho = 1.
        theta_mod (Tensor, optional): Modulation of the angles, in either
            shape. Default: no modulation, s_theta = 1.
        eps (float): Margin of the base poles to the unit circle, in (0, 1).
        delta_min (float): Offset of the radius scale, at least 0.
        delta_0 (float): Normalisation of the radius scale, above 0.
        lambda_theta (float): Bound of the angle modulation, in [0, 1).
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'`` or
            ``'triton'``; None picks by device.

    Returns:
        Tensor: Coefficients for `pole_scan`,
        ``(batch, length, groups, reals + 2 pairs)``, in float32 (float64 if
        ``rho_hat`` is float64). Without any modulation batch and length are
        1: expand them.

    Shape notes:
        Everything is in float32 (float64 if ``rho_hat`` is float64), under
        autocast too: coefficients in half precision would move poles outside
        the unit circle. Every tensor gets gradients.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit, there is no pole, or an option is
            out of its range.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import pole_denominator
        >>> pairs, reals = torch.zeros(4, 2), torch.zeros(4, 1)
        >>> modulation = torch.randn(2, 9, 1)
        >>> q = pole_denominator(pairs, pairs, reals, reals, modulation)
        >>> q.shape
        torch.Size([2, 9, 4, 5])

    Source:
        TCP-SSM (arXiv 2605.11563), equations 5 to 10.
    """
    tensors = (
        rho_hat,
        theta_hat,
        real_rho_hat,
        sign_hat,
        rho_mod,
        theta_mod,
    )
    options = tuple(map(float, (eps, delta_min, delta_0, lambda_theta)))
    _check(*tensors, *options)
    order = real_rho_hat.shape[1] + 2 * rho_hat.shape[1]
    if backend is None and not fits_kernels(order, rho_hat):
        backend = 'torch'
    backend = choose_backend('pole_denominator', backend, rho_hat, _AVAILABLE)
    modulations = (m for m in (rho_mod, theta_mod) if m is not None)
    is_empty = any(m.numel() == 0 for m in modulations)
    with autocast_off(rho_hat):
        if backend not in _IMPLEMENTATIONS and not is_empty:
            return pole_denominator_op(*tensors, *options, backend)
        dtype = working_dtype(rho_hat.dtype)
        compute = _IMPLEMENTATIONS.get(backend, pole_denominator_torch)
        return compute(
            *(None if t is None else t.to(dtype) for t in tensors), *options
        )


def token_poles(
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None = None,
    theta_mod: Tensor | None = None,
    eps: float = 0.01,
    delta_min: float = 0.5,
    delta_0: float = 1.0,
    lambda_theta: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the poles whose coefficients `pole_denominator` returns.

    For views, checks and filters that work with the poles themselves.

    Args:
        rho_hat (Tensor): As in `pole_denominator`, like the others.
        theta_hat (Tensor): Angles of the pairs.
        real_rho_hat (Tensor): Radii of the real poles.
        sign_hat (Tensor): Signs of the real poles.
        rho_mod (Tensor, optional): Modulation of the radii.
        theta_mod (Tensor, optional): Modulation of the angles.
        eps (float): Margin of the base poles to the unit circle.
        delta_min (float): Offset of the radius scale.
        delta_0 (float): Normalisation of the radius scale.
        lambda_theta (float): Bound of the angle modulation.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Real poles
        ``(batch, length, groups, reals)``; radii and angles of the complex
        pairs, both ``(batch, length, groups, pairs)``, in float32 (float64 if
        ``rho_hat`` is). Without any modulation batch and length are 1.

    Raises:
        TypeError: If a tensor is not real floating.
        ValueError: If a shape does not fit, there is no pole, or an option is
            out of its range.

    Example:
        >>> import torch
        >>> from mmssm.ops import token_poles
        >>> pairs, reals = torch.zeros(4, 2), torch.zeros(4, 1)
        >>> real, rho, theta = token_poles(pairs, pairs, reals, reals)
        >>> real.shape, rho.shape
        (torch.Size([1, 1, 4, 1]), torch.Size([1, 1, 4, 2]))

    Source:
        TCP-SSM (arXiv 2605.11563), equations 5 to 9.
    """
    tensors = (
        rho_hat,
        theta_hat,
        real_rho_hat,
        sign_hat,
        rho_mod,
        theta_mod,
    )
    options = tuple(map(float, (eps, delta_min, delta_0, lambda_theta)))
    _check(*tensors, *options)
    dtype = working_dtype(rho_hat.dtype)
    with autocast_off(rho_hat):
        return poles_torch(
            *(None if t is None else t.to(dtype) for t in tensors), *options
        )


def _check(
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    eps: float,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
) -> None:
    check_floating(
        rho_hat=rho_hat,
        theta_hat=theta_hat,
        real_rho_hat=real_rho_hat,
        sign_hat=sign_hat,
    )
    check_floating_or_none(rho_mod=rho_mod, theta_mod=theta_mod)
    check_device(
        rho_hat=rho_hat,
        theta_hat=theta_hat,
        real_rho_hat=real_rho_hat,
        sign_hat=sign_hat,
        rho_mod=rho_mod,
        theta_mod=theta_mod,
    )
    _check_poles(rho_hat, theta_hat, real_rho_hat, sign_hat)
    _check_modulation(rho_mod, theta_mod, groups=rho_hat.shape[0])
    _check_options(eps, delta_min, delta_0, lambda_theta)


def _check_poles(
    rho_hat: Tensor, theta_hat: Tensor, real_rho_hat: Tensor, sign_hat: Tensor
) -> None:
    check_ndim('rho_hat', rho_hat, '(groups, pairs)')
    check_ndim('real_rho_hat', real_rho_hat, '(groups, reals)')
    groups, pairs = rho_hat.shape
    reals = real_rho_hat.shape[1]
    check_shape('theta_hat', theta_hat, '(groups, pairs)', (groups, pairs))
    axes = '(groups, reals)'
    check_shape('real_rho_hat', real_rho_hat, axes, (groups, reals))
    check_shape('sign_hat', sign_hat, axes, (groups, reals))
    if groups < 1 or pairs + reals < 1:
        raise ValueError(
            f'`rho_hat` has shape {(groups, pairs)} and `real_rho_hat` has '
            f'{(groups, reals)}; expected at least one group and one pole'
        )


def _check_modulation(
    rho_mod: Tensor | None, theta_mod: Tensor | None, groups: int
) -> None:
    axes = '(batch, length, 1 or groups)'
    given = {'rho_mod': rho_mod, 'theta_mod': theta_mod}
    for name, tensor in given.items():
        if tensor is None:
            continue
        check_ndim(name, tensor, axes)
        if tensor.shape[2] not in (1, groups):
            raise ValueError(
                f'`{name}` has shape {tuple(tensor.shape)}; expected {axes} '
                f'with groups = {groups}'
            )
    if rho_mod is not None and theta_mod is not None:
        shape = (*rho_mod.shape[:2], theta_mod.shape[2])
        check_shape('theta_mod', theta_mod, axes, shape)


def _check_options(
    eps: float, delta_min: float, delta_0: float, lambda_theta: float
) -> None:
    if not 0 < eps < 1:
        raise ValueError(f'`eps` is {eps}; expected between 0 and 1')
    if not delta_min >= 0:
        raise ValueError(f'`delta_min` is {delta_min}; expected at least 0')
    if not delta_0 > 0:
        raise ValueError(f'`delta_0` is {delta_0}; expected above 0')
    if not 0 <= lambda_theta < 1:
        raise ValueError(
            f'`lambda_theta` is {lambda_theta}; expected in [0, 1)'
        )
