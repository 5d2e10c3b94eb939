"""Poles of every token, from base poles and modulation."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def poles_torch(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the poles; arguments as in `pole_denominator_reference`.

    Radii are exponentials of scaled logarithms, so that a radius near zero
    keeps its gradient.

    Returns:
        tuple: Real poles ``(batch, length, groups, reals)``; radii and angles
        of the pairs, both ``(batch, length, groups, pairs)``. Batch and
        length are 1 where there is no modulation at all.
    """
    log_rho = math.log1p(-eps) + F.logsigmoid(rho_hat)
    log_real_rho = math.log1p(-eps) + F.logsigmoid(real_rho_hat)
    theta = math.pi * torch.sigmoid(theta_hat)
    if rho_mod is not None:
        s_rho = ((delta_min + F.softplus(rho_mod)) / delta_0).unsqueeze(-1)
        log_rho, log_real_rho = s_rho * log_rho, s_rho * log_real_rho
    if theta_mod is not None:
        s_theta = 1 + lambda_theta * torch.tanh(theta_mod).unsqueeze(-1)
        theta = (s_theta * theta).clamp(0, math.pi)
    rho = torch.exp(log_rho)
    real = torch.tanh(sign_hat) * torch.exp(log_real_rho)
    modulation = theta_mod if rho_mod is None else rho_mod
    tokens = (1, 1) if modulation is None else modulation.shape[:2]
    return tuple(
        pole.expand(*tokens, *pole.shape[-2:]) for pole in (real, rho, theta)
    )
