"""Specialisations of the pole denominator."""

from mmssm.kernels.triton.pole_denominator_bwd import (
    _pole_denominator_bwd_kernel,
)
from mmssm.kernels.triton.pole_denominator_fwd import (
    _pole_denominator_fwd_kernel,
)
from tests.test_kernels.aot import AOTCase

_PARAMETERS = ('rho_hat', 'theta_hat', 'real_rho_hat', 'sign_hat')
_SCALARS = ('margin', 'delta_min', 'delta_0', 'lambda_theta')


def _case(
    name: str,
    backward: bool,
    modulation: str | None,
    reals: int,
    pairs: int,
    shared: bool,
    tile: tuple[int, int],
) -> AOTCase:
    """One case; ``shared`` says whether groups share the modulation."""
    pointers = [*_PARAMETERS, 'q']
    gradients = {f'd_{kind}_mod': '*fp32' for kind in ('rho', 'theta')}
    types = dict.fromkeys(_SCALARS, 'fp32')
    types |= dict.fromkeys(('N', 'L', 'G'), 'i32')
    constexprs = {
        'REALS': reals,
        'PAIRS': pairs,
        'HAS_RHO': modulation is not None,
        'HAS_THETA': modulation is not None,
        'BN': tile[0],
        'BG': tile[1],
    }
    for kind in ('rho', 'theta'):
        types |= {f's_{kind}_{axis}': 'i32' for axis in 'blg'}
    if backward:
        pointers = [*_PARAMETERS, 'dq', 'sums']
        types |= {f's_dq_{axis}': 'i32' for axis in 'blg'}
        constexprs['s_dq_i'] = 1
        constexprs |= {'SHARED_RHO': shared, 'SHARED_THETA': shared}
    types |= dict.fromkeys(pointers, '*fp32')
    optional = dict.fromkeys(('rho_mod', 'theta_mod'), modulation)
    if backward:
        optional |= gradients
    if modulation is None:
        constexprs |= dict.fromkeys(optional)
    else:
        types |= optional
    kernel = (
        _pole_denominator_bwd_kernel
        if backward
        else _pole_denominator_fwd_kernel
    )
    return AOTCase(name, kernel, types, constexprs)


# The forward kernel is a part of the backward one.
_BOTH = (
    ('bf16-order5-shared', '*bf16', 1, 2, True, (8, 16)),
    ('fp32-order3-reals', '*fp32', 3, 0, True, (128, 1)),
)
_BACKWARD = (
    ('fp32-order5-fixed', None, 1, 2, False, (8, 16)),
    ('fp32-order16-pairs', '*fp32', 0, 8, False, (4, 32)),
)
CASES = [
    *(_case(name, False, *options) for name, *options in _BOTH),
    *(_case(name, True, *options) for name, *options in _BOTH + _BACKWARD),
]
