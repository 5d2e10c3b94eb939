"""How near to divergence the pole scans of a model are."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmssm.analysis.companion import sample_growth
from mmssm.models.layers.pole_direction import PoleDirection
from mmssm.ops import modal_scan, pole_scan, token_poles


@dataclass(frozen=True)
class StabilityReport:
    """What is measured of one direction of a mixer.

    Attributes:
        max_output (float): Largest ``|y|`` of the recurrence, before skip
            and gate.
        base_radius_max (float): Largest modulus of a base pole.
        base_radius_mean (float): Mean over the base poles.
        radius_max (float): Largest modulus of a pole of a token.
        radius_mean (float): Mean over tokens and poles.
        growth_share (float, optional): Share of the drawn patterns of tokens
            that make the recurrence grow when they are repeated. None for
            the modal realization, which none can make grow.
        growth_max (float, optional): Largest growth per token of a pattern;
            above 1 the recurrence diverges on it.
    """

    max_output: float
    base_radius_max: float
    base_radius_mean: float
    radius_max: float
    radius_mean: float
    growth_share: float | None = None
    growth_max: float | None = None

    def is_finite(self) -> bool:
        """Whether no number is infinite or NaN."""
        numbers = (vars(self)[name] for name in vars(self))
        return all(n is None or math.isfinite(n) for n in numbers)


def find_pole_directions(model: nn.Module) -> dict[str, PoleDirection]:
    """Directions with poles in a model, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, PoleDirection)
    }


def pole_radii(real: Tensor, rho: Tensor) -> Tensor:
    """Moduli of all poles, real ones first, a pair counted once."""
    return torch.cat((real.abs(), rho), dim=-1)


def base_poles(direction: PoleDirection) -> tuple[Tensor, Tensor, Tensor]:
    """Poles of a direction that no token has modulated.

    Args:
        direction (PoleDirection): The direction.

    Returns:
        tuple: Real poles ``(groups, reals)``; radii and angles of the pairs,
        both ``(groups, pairs)``.
    """
    parameters = (
        direction.rho_hat,
        direction.theta_hat,
        direction.real_rho_hat,
        direction.sign_hat,
    )
    return tuple(t[0, 0] for t in token_poles(*parameters, eps=direction.eps))


def recurrence_output(
    direction: PoleDirection, eta: Tensor, *modulation: Tensor
) -> Tensor:
    """Output of the recurrence of a direction before skip and gate.

    Args:
        direction (PoleDirection): The direction.
        eta (Tensor): As returned by its ``drive``.
        *modulation (Tensor): The rest of what ``drive`` returns.

    Returns:
        Tensor: Like ``eta``.
    """
    options = dict(reverse=direction.reverse, backend=direction.backend)
    if direction.realization == 'direct':
        q = direction.denominator(*modulation)
        return pole_scan(eta, q, **options)
    real, rho, theta = direction.poles(*modulation)
    pair = rho * torch.cos(theta), rho * torch.sin(theta)
    return modal_scan(eta, real, *pair, direction.residues, **options)


@torch.no_grad()
def measure_stability(
    direction: PoleDirection,
    x: Tensor,
    num_patterns: int = 64,
    generator: torch.Generator | None = None,
) -> StabilityReport:
    """Run a direction once more and measure how stable it is.

    Args:
        direction (PoleDirection): The direction.
        x (Tensor): Its input, ``(batch, length, d_inner)``.
        num_patterns (int): Patterns drawn of each period of 2 to 6 tokens.
            Default: 64.
        generator (torch.Generator, optional): Of the CPU. Default: torch's.

    Returns:
        StabilityReport: The measurements.
    """
    eta, *modulation = direction.drive(direction.convolve(x))
    y = recurrence_output(direction, eta, *modulation)
    real, rho, _ = direction.poles(*modulation)
    radii = pole_radii(real, rho)
    base = pole_radii(*base_poles(direction)[:2])
    measured = dict(
        max_output=_value(y.abs(), torch.amax),
        base_radius_max=_value(base, torch.amax),
        base_radius_mean=_value(base, torch.mean),
        radius_max=_value(radii, torch.amax),
        radius_mean=_value(radii, torch.mean),
    )
    if direction.realization == 'direct':
        q = direction.denominator(*modulation)
        growth = sample_growth(
            q, num_patterns, reverse=direction.reverse, generator=generator
        )
        measured.update(
            # NaN is not above 1, but nobody may take it for stable.
            growth_share=float((~(growth <= 1)).double().mean()),
            growth_max=_value(growth, torch.amax),
        )
    return StabilityReport(**measured)


def _value(x: Tensor, reduce: Callable[[Tensor], Tensor]) -> float:
    return float(reduce(x.double())) if x.numel() else 0.0
