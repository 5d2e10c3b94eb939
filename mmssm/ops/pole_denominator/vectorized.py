"""The denominator in real arithmetic, coefficient by coefficient (`torch`)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def pole_denominator_torch(
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
    """Compute the coefficients; arguments as in the reference.

    Radii are exponentials of scaled logarithms, so that a radius near zero
    keeps its gradient.
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
    first = -2 * rho * torch.cos(theta)
    second = rho * rho
    real = -torch.tanh(sign_hat) * torch.exp(log_real_rho)
    coefficients: list[Tensor] = []
    for factor in real.unbind(-1):
        coefficients = _times(coefficients, (factor,))
    for factor in zip(first.unbind(-1), second.unbind(-1), strict=True):
        coefficients = _times(coefficients, factor)
    q = torch.stack(torch.broadcast_tensors(*coefficients), dim=-1)
    return q.reshape((1,) * (4 - q.ndim) + q.shape)


def _times(left: list[Tensor], right: tuple[Tensor, ...]) -> list[Tensor]:
    """Multiply two polynomials whose leading coefficients are 1, left out."""
    product: list[Tensor | None] = [None] * (len(left) + len(right))

    def add(i: int, term: Tensor) -> None:
        product[i] = term if product[i] is None else product[i] + term

    for i, coefficient in enumerate(left):
        add(i, coefficient)
    for j, factor in enumerate(right):
        add(j, factor)
        for i, coefficient in enumerate(left):
            add(i + j + 1, coefficient * factor)
    return product
