"""Backward of the pole denominator.

The products of the first factors are kept, and the adjoint of the product is
taken apart factor by factor, the last one first. A program sums the gradients
of the base poles over its tokens; the sums of the programs are added up
afterwards in fixed order.

Names as in `pole_denominator_parts`, and
    COUNT: base values of a group.
    SHARED: groups share the modulation, so that its gradient is their sum.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmssm.kernels.triton.launch import (
    autotune,
    device_guard,
    over_warps,
)
from mmssm.kernels.triton.pole_denominator_fwd import (
    clip_sizes,
    fits,
    modulation_strides,
    tile_sizes,
)
from mmssm.kernels.triton.pole_denominator_parts import (
    angle_is_free,
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


# fmt: off
@triton.jit
def _divide(adjoint, polynomial, first, second, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """Adjoint of `multiply`: of the polynomial and of both coefficients."""
    d_first = adjoint[0]
    d_second = adjoint[1] if PAIR else tl.zeros_like(first)
    before = ()
    for i in tl.static_range(SIZE):
        term = adjoint[i] + first * adjoint[i + 1]
        d_first += adjoint[i + 1] * polynomial[i]
        if PAIR:
            term += second * adjoint[i + 2]
            d_second += adjoint[i + 2] * polynomial[i]
        before = before + (term,)
    return before, d_first, d_second


@triton.jit
def _store_modulation(d_mod, values, n, g, here, N, G, SHARED: tl.constexpr):
    """Gradient of a modulation, ``(blocks of groups, N)`` or ``(N, G)``."""
    if SHARED:
        block = g // g.shape[0]
        row = tl.max(block, axis=0).to(tl.int64)
        tl.store(d_mod + row * N + n, tl.sum(values, axis=1), mask=n < N)
    else:
        tl.store(d_mod + (n.to(tl.int64) * G)[:, None] + g[None, :], values, mask=here)


@autotune(over_warps(4, 2), key=['REALS', 'PAIRS', 'BG'], fits=fits)
@triton.jit
def _pole_denominator_bwd_kernel(
    dq, rho_hat, theta_hat, real_rho_hat, sign_hat, rho_mod, theta_mod, d_rho_mod, d_theta_mod, sums, N, L, G,
    margin, delta_min, delta_0, lambda_theta,
    s_dq_b, s_dq_l, s_dq_g, s_dq_i, s_rho_b, s_rho_l, s_rho_g, s_theta_b, s_theta_l, s_theta_g,
    REALS: tl.constexpr, PAIRS: tl.constexpr, HAS_RHO: tl.constexpr, HAS_THETA: tl.constexpr, SHARED_RHO: tl.constexpr, SHARED_THETA: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr,
):
    ORDER: tl.constexpr = REALS + 2 * PAIRS
    COUNT: tl.constexpr = 2 * REALS + 2 * PAIRS
    blocks = tl.cdiv(G, BG)
    tile = tl.program_id(0) // blocks
    g = (tl.program_id(0) % blocks) * BG + tl.arange(0, BG)
    n = tile * BN + tl.arange(0, BN)
    b, t = n // L, n % L
    here = (n < N)[:, None] & (g < G)[None, :]
    zero = tl.zeros((BN, BG), tl.float32)
    s_rho, s_theta = zero + 1.0, zero + 1.0
    if HAS_RHO:
        raw_rho = load_modulation(rho_mod, b, t, g, s_rho_b, s_rho_l, s_rho_g, here)
        s_rho = radius_scale(raw_rho, delta_min, delta_0)
    if HAS_THETA:
        bend = tanh(load_modulation(theta_mod, b, t, g, s_theta_b, s_theta_l, s_theta_g, here))
        s_theta = 1.0 + lambda_theta * bend

    polynomial = ()
    products, factors = (), ()
    for k in tl.static_range(REALS):
        log_rho = log_radius(load_parameter(real_rho_hat, g, G, k, REALS), margin)
        first = real_factor(load_parameter(sign_hat, g, G, k, REALS), log_rho, s_rho)
        products, factors = products + (polynomial,), factors + ((first, zero),)
        polynomial = multiply(polynomial, first, zero, k, 0)
    for k in tl.static_range(PAIRS):
        log_rho = log_radius(load_parameter(rho_hat, g, G, k, PAIRS), margin)
        angle = clip_angle(s_theta * base_angle(load_parameter(theta_hat, g, G, k, PAIRS)))
        first, second = pair_factor(log_rho, angle, s_rho)
        products, factors = products + (polynomial,), factors + ((first, second),)
        polynomial = multiply(polynomial, first, second, REALS + 2 * k, 1)

    adjoint = ()
    at = dq + (b.to(tl.int64) * s_dq_b + t.to(tl.int64) * s_dq_l)[:, None] + (g.to(tl.int64) * s_dq_g)[None, :]
    for i in tl.static_range(ORDER):
        adjoint = adjoint + (tl.load(at + i * s_dq_i, mask=here, other=0.0).to(tl.float32),)

    d_s_rho, d_s_theta = zero, zero
    d_rho, d_theta, d_real, d_sign = (), (), (), ()
    for j in tl.static_range(PAIRS):
        raw = load_parameter(rho_hat, g, G, PAIRS - 1 - j, PAIRS)
        log_rho = log_radius(raw, margin)
        base = base_angle(load_parameter(theta_hat, g, G, PAIRS - 1 - j, PAIRS))
        angle = clip_angle(s_theta * base)
        first, second = factors[REALS + PAIRS - 1 - j]
        adjoint, d_first, d_second = _divide(adjoint, products[REALS + PAIRS - 1 - j], first, second, REALS + 2 * (PAIRS - 1 - j), 1)
        # Both coefficients are homogeneous in the radius.
        d_log = d_first * first + 2.0 * d_second * second
        d_s_rho += d_log * log_rho
        d_rho = (d_log * s_rho * tl.sigmoid(-raw),) + d_rho
        d_angle = 2.0 * tl.exp(s_rho * log_rho) * tl.sin(angle) * d_first
        d_angle = tl.where(angle_is_free(s_theta * base), d_angle, 0.0)
        d_s_theta += d_angle * base
        d_theta = (d_angle * s_theta * base * tl.sigmoid(-load_parameter(theta_hat, g, G, PAIRS - 1 - j, PAIRS)),) + d_theta
    for j in tl.static_range(REALS):
        raw = load_parameter(real_rho_hat, g, G, REALS - 1 - j, REALS)
        log_rho = log_radius(raw, margin)
        sign = load_parameter(sign_hat, g, G, REALS - 1 - j, REALS)
        first, _zero = factors[REALS - 1 - j]
        adjoint, d_first, _second = _divide(adjoint, products[REALS - 1 - j], first, zero, REALS - 1 - j, 0)
        d_log = d_first * first
        d_s_rho += d_log * log_rho
        d_real = (d_log * s_rho * tl.sigmoid(-raw),) + d_real
        slope = 4.0 * tl.sigmoid(2.0 * sign) * tl.sigmoid(-2.0 * sign)
        d_sign = (-d_first * tl.exp(s_rho * log_rho) * slope,) + d_sign

    gradients = d_rho + d_theta + d_real + d_sign
    sums += tile.to(tl.int64) * COUNT * G + g
    for i in tl.static_range(COUNT):
        tl.store(sums + i * G, tl.sum(gradients[i], axis=0), mask=g < G)
    if HAS_RHO:
        _store_modulation(d_rho_mod, d_s_rho * tl.sigmoid(raw_rho) / delta_0, n, g, here, N, G, SHARED_RHO)
    if HAS_THETA:
        _store_modulation(d_theta_mod, d_s_theta * lambda_theta * (1.0 - bend * bend), n, g, here, N, G, SHARED_THETA)
# fmt: on


def pole_denominator_bwd(
    grad_q: Tensor,
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
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `pole_denominator_fwd`.

    Args:
        grad_q (Tensor): Gradient of the coefficients, shape
            ``(batch, length, groups, order)``.
        rho_hat (Tensor): As in the forward, like all arguments after it.
        theta_hat (Tensor): Angles of the pairs.
        real_rho_hat (Tensor): Radii of the real poles.
        sign_hat (Tensor): Signs of the real poles.
        rho_mod (Tensor, optional): Modulation of the radii.
        theta_mod (Tensor, optional): Modulation of the angles.
        eps (float): Margin to the unit circle.
        delta_min (float): Offset of the radius scale.
        delta_0 (float): Normalisation of the radius scale.
        lambda_theta (float): Bound of the angle modulation.

    Returns:
        tuple[Tensor | None, ...]: Gradients of the six tensors; None for
        absent ones.
    """
    batch, length = clip_sizes(rho_mod, theta_mod)
    groups, pairs = rho_hat.shape
    reals = real_rho_hat.shape[1]
    tokens, columns = tile_sizes(groups)
    group_blocks = triton.cdiv(groups, columns)
    tiles = triton.cdiv(batch * length, tokens)
    d_rho_mod = _modulation_gradient(rho_mod, group_blocks)
    d_theta_mod = _modulation_gradient(theta_mod, group_blocks)
    sums = rho_hat.new_empty(
        tiles, 2 * (reals + pairs), groups, dtype=torch.float32
    )
    with device_guard(rho_hat):
        _pole_denominator_bwd_kernel[(tiles * group_blocks,)](
            grad_q,
            rho_hat.contiguous(),
            theta_hat.contiguous(),
            real_rho_hat.contiguous(),
            sign_hat.contiguous(),
            rho_mod,
            theta_mod,
            d_rho_mod,
            d_theta_mod,
            sums,
            batch * length,
            length,
            groups,
            math.log1p(-eps),
            delta_min,
            delta_0,
            lambda_theta,
            *grad_q.stride(),
            *modulation_strides(rho_mod),
            *modulation_strides(theta_mod),
            REALS=reals,
            PAIRS=pairs,
            HAS_RHO=rho_mod is not None,
            HAS_THETA=theta_mod is not None,
            SHARED_RHO=rho_mod is not None and rho_mod.shape[2] == 1,
            SHARED_THETA=theta_mod is not None and theta_mod.shape[2] == 1,
            BN=tokens,
            BG=columns,
        )
    parameters = (rho_hat, theta_hat, real_rho_hat, sign_hat)
    parts = sums.sum(0).split((pairs, pairs, reals, reals))
    # Outputs of an operator may not share memory.
    gradients = [
        part.T.to(parameter.dtype, copy=True)
        for parameter, part in zip(parameters, parts, strict=True)
    ]
    for modulation, part in ((rho_mod, d_rho_mod), (theta_mod, d_theta_mod)):
        if modulation is None:
            gradients.append(None)
        else:
            gradients.append(part.sum(0).to(modulation.dtype))
    return tuple(gradients)


def _modulation_gradient(
    modulation: Tensor | None, group_blocks: int
) -> Tensor | None:
    """Buffer ``(parts, batch, length, 1 or groups)``, to be summed."""
    if modulation is None:
        return None
    parts = group_blocks if modulation.shape[2] == 1 else 1
    return modulation.new_empty(parts, *modulation.shape, dtype=torch.float32)
