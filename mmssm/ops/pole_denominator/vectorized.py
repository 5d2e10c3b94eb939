"""The denominator in real arithmetic, coefficient by coefficient (`torch`)."""

import torch
from torch import Tensor

from mmssm.ops.pole_denominator.poles import poles_torch


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
    """Compute the coefficients; arguments as in the reference."""
    real, rho, theta = poles_torch(
        rho_hat,
        theta_hat,
        real_rho_hat,
        sign_hat,
        rho_mod,
        theta_mod,
        eps,
        delta_min,
        delta_0,
        lambda_theta,
    )
    first, second = -2 * rho * torch.cos(theta), rho * rho
    coefficients: list[Tensor] = []
    for factor in (-real).unbind(-1):
        coefficients = _times(coefficients, (factor,))
    for factor in zip(first.unbind(-1), second.unbind(-1), strict=True):
        coefficients = _times(coefficients, factor)
    return torch.stack(coefficients, dim=-1)


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
