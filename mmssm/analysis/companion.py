"""Growth of the pole recurrence over short patterns of tokens.

The poles of one token inside the unit circle bound the recurrence for that
token repeated for ever. A pattern of different tokens can make it grow all
the same: what decides is the product of their companion matrices.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PERIODS = (2, 3, 4, 5, 6)
_SQUARINGS = 30


def companion_matrices(q: Tensor) -> Tensor:
    """Matrices that map ``(y_{t-1}, ..., y_{t-order})`` one token further.

    Args:
        q (Tensor): Coefficients of `pole_scan`, ``(..., order)``.

    Returns:
        Tensor: ``(..., order, order)``.
    """
    order = q.shape[-1]
    matrices = q.new_zeros(*q.shape, order)
    matrices[..., 0, :] = -q
    shift = torch.arange(order - 1, device=q.device)
    matrices[..., shift + 1, shift] = 1
    return matrices


def growth_per_token(patterns: Tensor) -> Tensor:
    """Growth of the recurrence per token while patterns are repeated.

    Args:
        patterns (Tensor): Coefficients of the tokens of each pattern in the
            order in which they are processed, ``(patterns, period, order)``.

    Returns:
        Tensor: ``(patterns,)``, float64: the spectral radius of the product
        of companion matrices to the power of 1 / period. Above 1 the
        recurrence grows without bound; not finite where a coefficient is
        not.
    """
    patterns = patterns.detach().double()
    is_finite = patterns.isfinite().flatten(1).all(1)
    matrices = companion_matrices(patterns[is_finite])
    growth = patterns.new_full((patterns.shape[0],), torch.nan)
    product = matrices[:, 0]
    for i in range(1, patterns.shape[1]):
        product = matrices[:, i] @ product
    growth[is_finite] = spectral_radii(product) ** (1 / patterns.shape[1])
    return growth


def spectral_radii(matrices: Tensor) -> Tensor:
    """Spectral radii by Gelfand's formula, the limit of ``|M^n| ** (1/n)``.

    Unlike a solver for eigenvalues it converges for every matrix.

    Args:
        matrices (Tensor): Finite matrices ``(batch, order, order)``, float64.

    Returns:
        Tensor: ``(batch,)``, with a relative error of about 1e-7 at most.
    """
    log_radii = matrices.new_zeros(matrices.shape[0])
    smallest = torch.finfo(matrices.dtype).tiny
    for k in range(_SQUARINGS):
        norms = matrices.abs().amax((1, 2))
        log_radii += norms.log() / 2**k
        matrices = matrices / norms.clamp(min=smallest)[:, None, None]
        matrices = matrices @ matrices
    return log_radii.exp()


def draw_patterns(
    q: Tensor,
    count: int,
    period: int,
    reverse: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw patterns of tokens: successive ones, and any ones of a batch.

    Args:
        q (Tensor): Coefficients ``(batch, length, groups, order)``.
        count (int): Number of patterns; one half are windows of an image,
            the other half mix tokens of the batch.
        period (int): Tokens of a pattern; windows are no longer than an
            image.
        reverse (bool): Whether tokens are processed from the last to the
            first. Default: False.
        generator (torch.Generator, optional): Of the CPU. Default: torch's.

    Returns:
        Tensor: ``(count, period, order)``, each pattern of one group.
    """
    batch, length, groups, _ = q.shape

    def draw(limit: int, *shape: int) -> Tensor:
        index = torch.randint(limit, shape, generator=generator)
        return index.to(q.device)

    group = draw(groups, count, 1)
    image, token = draw(batch, count, period), draw(length, count, period)
    windows = count // 2
    image[:windows] = image[:windows, :1]
    steps = torch.arange(period, device=q.device)
    if reverse:
        steps = steps.flip(0)
    first = token[:windows, :1] % max(length - period + 1, 1)
    token[:windows] = (first + steps).clamp(max=length - 1)
    return q[image, token, group]


def sample_growth(
    q: Tensor,
    count: int,
    periods: Sequence[int] = PERIODS,
    reverse: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Growth per token of patterns drawn from real tokens.

    Args:
        q (Tensor): Coefficients ``(batch, length, groups, order)``.
        count (int): Number of patterns of each period.
        periods (Sequence[int]): Tokens per pattern. Default: 2 to 6.
        reverse (bool): As in :func:`draw_patterns`. Default: False.
        generator (torch.Generator, optional): Of the CPU. Default: torch's.

    Returns:
        Tensor: ``(len(periods) * count,)``, float64.
    """
    return torch.cat(
        [
            growth_per_token(
                draw_patterns(q, count, period, reverse, generator)
            )
            for period in periods
        ]
    )
