"""The definition of the denominator: poles, then a product of factors."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def pole_denominator_reference(
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
) -> Tensor:
    """Multiply out one factor per pole; all tensors in the working dtype.

    Args:
        rho_hat (Tensor): ``(groups, pairs)``.
        theta_hat (Tensor): ``(groups, pairs)``.
        real_rho_hat (Tensor): ``(groups, reals)``.
        sign_hat (Tensor): ``(groups, reals)``.
        rho_mod (Tensor, optional): ``(batch, length, 1 or groups)``.
        theta_mod (Tensor, optional): ``(batch, length, 1 or groups)``.
        eps (float): Margin to the unit circle.
        delta_min (float): Offset of the radius scale.
        delta_0 (float): Normalisation of the radius scale.
        lambda_theta (float): Bound of the angle modulation.

    Returns:
        Tensor: Coefficients ``(batch, length, groups, order)``; batch and
        length are 1 where there is no modulation.
    """
    s_rho, s_theta = _scales(
        rho_hat, rho_mod, theta_mod, delta_min, delta_0, lambda_theta
    )
    radius = ((1 - eps) * torch.sigmoid(rho_hat)) ** s_rho
    angle = (s_theta * math.pi * torch.sigmoid(theta_hat)).clamp(0, math.pi)
    real_radius = ((1 - eps) * torch.sigmoid(real_rho_hat)) ** s_rho
    upper = torch.polar(*torch.broadcast_tensors(radius, angle))
    real = torch.tanh(sign_hat) * real_radius
    # With one modulation alone, only some of the poles depend on the token.
    tokens = torch.broadcast_shapes(real.shape[:-1], upper.shape[:-1])
    real, upper = (t.expand(*tokens, t.shape[-1]) for t in (real, upper))
    poles = torch.cat((real + 0j, upper, upper.conj()), dim=-1)
    polynomial = torch.ones_like(poles[..., :1])
    for pole in poles.unbind(-1):
        shifted = F.pad(polynomial, (1, 0))
        polynomial = F.pad(polynomial, (0, 1)) - pole.unsqueeze(-1) * shifted
    return polynomial.real[..., 1:]


def _scales(
    like: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
) -> tuple[Tensor, Tensor]:
    """Radius and angle scales, ``(batch, length, 1 or groups, 1)``."""
    s_rho = s_theta = like.new_ones(1, 1, 1, 1)
    if rho_mod is not None:
        s_rho = (delta_min + F.softplus(rho_mod.unsqueeze(-1))) / delta_0
    if theta_mod is not None:
        s_theta = 1 + lambda_theta * torch.tanh(theta_mod.unsqueeze(-1))
    return s_rho, s_theta
