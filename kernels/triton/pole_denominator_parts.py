"""Poles and products of their factors, for both directions.

A program computes a tile of BN tokens (batch and length in one) and BG
groups; polynomials are tuples of coefficients without the leading 1.

Names in the kernels:
    N, L, G: tokens of all clips, length, groups.
    REALS, PAIRS: real poles and conjugate pairs.
    HAS_RHO, HAS_THETA: modulation of radii and angles.
    margin: log(1 - eps).
    s_<tensor>_<axis>: strides, of batch (b), token (l), group (g), tap (i).
"""

import triton
import triton.language as tl

_PI = tl.constexpr(3.141592653589793)


# fmt: off
@triton.jit
def _log1p(x):
    """Exact for tiny x, unlike log(1 + x)."""
    above = 1.0 + x
    step = tl.where(above == 1.0, 1.0, above - 1.0)
    return tl.where(above == 1.0, x, tl.log(above) * x / step)


@triton.jit
def _log_sigmoid(x):
    return tl.minimum(x, 0.0) - _log1p(tl.exp(-tl.abs(x)))


@triton.jit
def tanh(x):
    """Hyperbolic tangent."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def load_parameter(parameters, g, G, k, COLUMNS: tl.constexpr):
    """Column k of a parameter, one row of groups, in float32."""
    values = tl.load(parameters + g * COLUMNS + k, mask=g < G, other=0.0)
    return values.to(tl.float32)[None, :]


@triton.jit
def load_modulation(modulation, b, t, g, s_b, s_l, s_g, here):
    """Tile of a modulation in float32."""
    tokens = (b.to(tl.int64) * s_b + t.to(tl.int64) * s_l)[:, None]
    return tl.load(modulation + tokens + (g * s_g)[None, :], mask=here, other=0.0).to(tl.float32)


@triton.jit
def radius_scale(modulation, delta_min, delta_0):
    """Factor of the logarithm of a radius."""
    softplus = tl.maximum(modulation, 0.0) + _log1p(tl.exp(-tl.abs(modulation)))
    return (delta_min + softplus) / delta_0


@triton.jit
def log_radius(rho_hat, margin):
    """Logarithm of a base radius."""
    return margin + _log_sigmoid(rho_hat)


@triton.jit
def base_angle(theta_hat):
    """Base angle of a pair."""
    return _PI * tl.sigmoid(theta_hat)


@triton.jit
def clip_angle(angle):
    """Angle in [0, pi]; NaN stays."""
    angle = tl.where(angle < 0.0, 0.0, angle)
    return tl.where(angle > _PI, _PI, angle)


@triton.jit
def angle_is_free(angle):
    """Whether clipping leaves the angle, and its gradient, alone."""
    return (angle >= 0.0) & (angle <= _PI)


@triton.jit
def real_factor(sign_hat, log_rho, s_rho):
    """First coefficient of the factor of a real pole."""
    return -tanh(sign_hat) * tl.exp(s_rho * log_rho)


@triton.jit
def pair_factor(log_rho, angle, s_rho):
    """Both coefficients of the factor of a pair."""
    rho = tl.exp(s_rho * log_rho)
    return -2.0 * rho * tl.cos(angle), rho * rho


@triton.jit
def multiply(polynomial, first, second, SIZE: tl.constexpr, PAIR: tl.constexpr):
    """Product of SIZE coefficients with a factor of one or two."""
    product = ()
    for i in tl.static_range(SIZE + 1 + PAIR):
        term = tl.zeros_like(first)
        if i < SIZE:
            term += polynomial[i]
        if i == 0:
            term += first
        elif i <= SIZE:
            term += first * polynomial[i - 1]
        if PAIR and i == 1:
            term += second
        elif PAIR and i > 1:
            term += second * polynomial[i - 2]
        product = product + (term,)
    return product
# fmt: on
