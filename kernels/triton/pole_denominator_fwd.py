"""Forward of the pole denominator, one lane per token and group.

Names as in `pole_denominator_parts`.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.launch import (
    autotune,
    device_guard,
    over_warps,
)
from mmssm.kernels.triton.pole_denominator_parts import (
    base_angle,
    clip_angle,
    load_modulation,
    load_parameter,
    log_radius,
    multiply,
    pair_factor,
    radius_scale,
    real_factor,
    tanh,
)

_TILE = 128
_MOST_GROUPS = 32
# Of a higher order, a thread has registers for one lane only.
_LOW_ORDER = 8


def fits(
    config: triton.Config, REALS: int, PAIRS: int, BN: int, BG: int, **_: Any
) -> bool:
    """Whether a number of warps leaves a thread enough registers."""
    lanes = BN * BG // (32 * config.num_warps)
    return lanes == 1 or REALS + 2 * PAIRS <= _LOW_ORDER


# fmt: off
@autotune(over_warps(4, 2), key=['REALS', 'PAIRS', 'BG'], fits=fits)
@triton.jit
def _pole_denominator_fwd_kernel(
    rho_hat, theta_hat, real_rho_hat, sign_hat, rho_mod, theta_mod, q, N, L, G, margin, delta_min, delta_0, lambda_theta,
    s_rho_b, s_rho_l, s_rho_g, s_theta_b, s_theta_l, s_theta_g,
    REALS: tl.constexpr, PAIRS: tl.constexpr, HAS_RHO: tl.constexpr, HAS_THETA: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
):
    ORDER: tl.constexpr = REALS + 2 * PAIRS
    blocks = tl.cdiv(G, BG)
    g = (tl.program_id(0) % blocks) * BG + tl.arange(0, BG)
    n = (tl.program_id(0) // blocks) * BN + tl.arange(0, BN)
    b, t = n // L, n % L
    here = (n < N)[:, None] & (g < G)[None, :]
    zero = tl.zeros((BN, BG), tl.float32)
    s_rho, s_theta = zero + 1.0, zero + 1.0
    if HAS_RHO:
        s_rho = radius_scale(load_modulation(rho_mod, b, t, g, s_rho_b, s_rho_l, s_rho_g, here), delta_min, delta_0)
    if HAS_THETA:
        s_theta = 1.0 + lambda_theta * tanh(load_modulation(theta_mod, b, t, g, s_theta_b, s_theta_l, s_theta_g, here))

    polynomial = ()
    for k in tl.static_range(REALS):
        log_rho = log_radius(load_parameter(real_rho_hat, g, G, k, REALS), margin)
        first = real_factor(load_parameter(sign_hat, g, G, k, REALS), log_rho, s_rho)
        polynomial = multiply(polynomial, first, zero, k, 0)
    for k in tl.static_range(PAIRS):
        log_rho = log_radius(load_parameter(rho_hat, g, G, k, PAIRS), margin)
        angle = clip_angle(s_theta * base_angle(load_parameter(theta_hat, g, G, k, PAIRS)))
        first, second = pair_factor(log_rho, angle, s_rho)
        polynomial = multiply(polynomial, first, second, REALS + 2 * k, 1)

    q += (n.to(tl.int64) * G)[:, None] * ORDER + (g * ORDER)[None, :]
    for i in tl.static_range(ORDER):
        tl.store(q + i, polynomial[i], mask=here)
# fmt: on


def pole_denominator_fwd(
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
    """Compute the coefficients of every token.

    Args:
        rho_hat (Tensor): Radii of the pairs, shape ``(groups, pairs)``.
        theta_hat (Tensor): Angles of the pairs, ``(groups, pairs)``.
        real_rho_hat (Tensor): Radii of the real poles, ``(groups, reals)``.
        sign_hat (Tensor): Signs of the real poles, ``(groups, reals)``.
        rho_mod (Tensor, optional): Modulation of the radii, shape
            ``(batch, length, 1 or groups)``.
        theta_mod (Tensor, optional): Modulation of the angles, the same.
        eps (float): Margin to the unit circle.
        delta_min (float): Offset of the radius scale.
        delta_0 (float): Normalisation of the radius scale.
        lambda_theta (float): Bound of the angle modulation.

    Returns:
        Tensor: Coefficients in float32, shape
        ``(batch, length, groups, order)``.
    """
    batch, length = clip_sizes(rho_mod, theta_mod)
    groups, pairs = rho_hat.shape
    reals = real_rho_hat.shape[1]
    tokens, columns = tile_sizes(groups)
    q = rho_hat.new_empty(
        batch, length, groups, reals + 2 * pairs, dtype=torch.float32
    )
    blocks = triton.cdiv(batch * length, tokens)
    with device_guard(rho_hat):
        _pole_denominator_fwd_kernel[(blocks * triton.cdiv(groups, columns),)](
            rho_hat.contiguous(),
            theta_hat.contiguous(),
            real_rho_hat.contiguous(),
            sign_hat.contiguous(),
            rho_mod,
            theta_mod,
            q,
            batch * length,
            length,
            groups,
            math.log1p(-eps),
            delta_min,
            delta_0,
            lambda_theta,
            *modulation_strides(rho_mod),
            *modulation_strides(theta_mod),
            REALS=reals,
            PAIRS=pairs,
            HAS_RHO=rho_mod is not None,
            HAS_THETA=theta_mod is not None,
            BN=tokens,
            BG=columns,
        )
    return q


def clip_sizes(
    rho_mod: Tensor | None, theta_mod: Tensor | None
) -> tuple[int, int]:
    """Batch and length; 1 and 1 without modulation."""
    modulation = theta_mod if rho_mod is None else rho_mod
    return (1, 1) if modulation is None else modulation.shape[:2]


def tile_sizes(groups: int) -> tuple[int, int]:
    """Tokens and groups of a tile, powers of 2."""
    columns = min(_MOST_GROUPS, triton.next_power_of_2(groups))
    return _TILE // columns, columns


def modulation_strides(modulation: Tensor | None) -> tuple[int, int, int]:
    """Strides; groups that share a modulation are not apart."""
    if modulation is None:
        return 0, 0, 0
    batch, length, group = modulation.stride()
    return batch, length, 0 if modulation.shape[2] == 1 else group
