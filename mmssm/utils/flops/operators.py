"""FLOPs of the operators of mmssm, as their backends compute them."""

from typing import Any

from torch import Tensor

from mmssm.utils.flops.handlers import register_flops


def _skip_and_gate(arguments: dict[str, Any]) -> int:
    """FLOPs per number of ``(y + D x) * silu(z)``."""
    skip = 0 if arguments['D'] is None else 2
    return skip + (0 if arguments['z'] is None else 2)


def _step_size(arguments: dict[str, Any], bias: str, softplus: str) -> int:
    return (arguments[bias] is not None) + bool(arguments[softplus])


@register_flops('mmssm::selective_scan')
def _selective_scan(arguments: dict[str, Any], _: Any) -> int:
    d_state = arguments['A'].shape[1]
    # dt A, exp, decay of the state, B (dt u), sum, C h and its sum, which is
    # one addition short, as many as dt u takes.
    recurrence = 7 * d_state
    step = _step_size(arguments, 'delta_bias', 'delta_softplus')
    per_number = recurrence + step + _skip_and_gate(arguments)
    return arguments['u'].numel() * per_number


@register_flops('mmssm::pole_scan')
def _pole_scan(arguments: dict[str, Any], _: Any) -> int:
    order = arguments['q'].shape[-1]
    per_number = 2 * order + _skip_and_gate(arguments)
    return arguments['eta'].numel() * per_number


@register_flops('mmssm::modal_scan')
def _modal_scan(arguments: dict[str, Any], _: Any) -> int:
    reals = arguments['real'].shape[-1]
    pairs = arguments['pair_re'].shape[-1]
    # A complex product is four products and two sums; the drive is added.
    modes = 2 * reals + 7 * pairs
    outputs = 2 * (reals + 2 * pairs) - 1
    per_number = modes + outputs + _skip_and_gate(arguments)
    return arguments['eta'].numel() * per_number


@register_flops('mmssm::pole_denominator')
def _pole_denominator(arguments: dict[str, Any], q: Tensor) -> int:
    groups, pairs = arguments['rho_hat'].shape
    reals = arguments['real_rho_hat'].shape[1]
    tokens = q.shape[0] * q.shape[1]
    # Logarithms of the radii, angles, signs.
    base = groups * (4 * pairs + 3 * reals)
    rho_mod, theta_mod = arguments['rho_mod'], arguments['theta_mod']
    # Softplus, sum, quotient; tanh, product, sum.
    scales = sum(3 * t.shape[2] for t in (rho_mod, theta_mod) if t is not None)
    # Scaled logarithm, exp, sign; then also product and clip of the angle,
    # cos, its product with -2 rho, and rho^2.
    poles = 3 * reals + 8 * pairs
    per_group = poles + _expansion(reals, pairs)
    return base + tokens * (scales + groups * per_group)


def _expansion(reals: int, pairs: int) -> int:
    """FLOPs of multiplying factors with leading coefficients of one."""
    flops = degree = 0
    for factor in [1] * reals + [2] * pairs:
        flops += 2 * degree * factor
        degree += factor
    return flops


@register_flops('mmssm::causal_conv1d')
def _causal_conv1d(arguments: dict[str, Any], _: Any) -> int:
    width = arguments['weight'].shape[1]
    per_number = 2 * width - 1 + (arguments['bias'] is not None)
    return arguments['x'].numel() * (per_number + bool(arguments['silu']))


@register_flops('mmssm::rms_norm_gated')
def _rms_norm_gated(arguments: dict[str, Any], _: Any) -> int:
    # Square, sum, product with the inverse root, weight; bias; gate.
    per_number = 4 + (arguments['bias'] is not None)
    per_number += 0 if arguments['z'] is None else 2
    return arguments['x'].numel() * per_number


@register_flops('mmssm::cayley_rotate')
def _cayley_rotate(arguments: dict[str, Any], _: Any) -> int:
    batch, heads, headdim, d_state = arguments['state'].shape
    rank = arguments['U'].shape[-1]
    unknowns = min(2 * rank, d_state)
    # Elimination and its right-hand sides.
    solve = 2 * unknowns**3 // 3 + 2 * unknowns**2 * d_state
    if unknowns < d_state:
        # R^T L, h L, its product with the solution, the sum.
        matrices = 2 * d_state * unknowns**2
        products = headdim * d_state * (4 * unknowns + 1)
    else:
        # Both halves of S, h Z.
        matrices = 4 * rank * d_state**2
        products = 2 * headdim * d_state**2
    return batch * heads * (solve + matrices + products)


@register_flops('mmssm::ssd_chunk_scan')
def _ssd_chunk_scan(arguments: dict[str, Any], _: Any) -> int:
    batch, length, heads, headdim = arguments['x'].shape
    groups, d_state = arguments['B'].shape[2:]
    chunk = min(arguments['chunk_size'], length)
    step = _step_size(arguments, 'dt_bias', 'dt_softplus')
    # Inside a chunk: C B^T per group, its decays, and the product with x dt.
    inside = chunk * (2 * groups * d_state + 3 * heads + 2 * heads * headdim)
    # Between chunks: each token writes into the state and reads from it.
    states = heads * headdim * (4 * d_state + 2)
    gate = heads * headdim * (1 + _skip_and_gate(arguments))
    return batch * length * (inside + states + gate + heads * step)


@register_flops('mmssm::ssd_step')
def _ssd_step(arguments: dict[str, Any], _: Any) -> int:
    state, x = arguments['state'], arguments['x']
    step = _step_size(arguments, 'dt_bias', 'dt_softplus') + 2
    # Decay, product with B, sum, product with C and its sum.
    flops = 5 * state.numel() + x.numel() * (1 + _skip_and_gate(arguments))
    return flops + arguments['dt'].numel() * step
