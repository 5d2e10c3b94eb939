"""Cases of the pole denominator."""

import functools
from typing import Any

import torch
from torch import Tensor

from tests.test_ops.parity.case import (
    Case,
    Draw,
    expanded,
    reordered,
    sliced,
    swapped,
)

MODULATIONS = ('rho_mod', 'theta_mod')
POLES = ('rho_hat', 'theta_hat', 'real_rho_hat', 'sign_hat')
HALF = ('float32', 'bfloat16', 'float16')


def make(
    length: int = 7,
    batch: int = 2,
    groups: int = 3,
    pairs: int = 2,
    reals: int = 1,
    rho_groups: int = 3,
    theta_groups: int = 3,
    optional: tuple[str, ...] = MODULATIONS,
    shift: float = 0.0,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    """Tensor arguments; ``shift`` and ``scale`` act on base parameters."""
    draw = Draw()
    tensors = {
        'rho_hat': shift + scale * draw.normal(groups, pairs),
        'theta_hat': scale * draw.normal(groups, pairs),
        'real_rho_hat': shift + scale * draw.normal(groups, reals),
        'sign_hat': scale * draw.normal(groups, reals),
        'rho_mod': scale * draw.normal(batch, length, rho_groups),
        'theta_mod': scale * draw.normal(batch, length, theta_groups),
    }
    absent = set(MODULATIONS) - set(optional)
    return {n: t for n, t in tensors.items() if n not in absent}


def case(
    name: str,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    large: bool = False,
    layouts: dict[str, Any] | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
    options: dict[str, float] | None = None,
    **sizes: Any,
) -> Case:
    return Case(
        'pole_denominator',
        name,
        functools.partial(make, **sizes),
        options or {},
        layouts or {},
        (),
        dtypes or {},
        runs_in,
        interpreted,
        large,
    )


CASES = [
    case('all', runs_in=(*HALF, 'float64'), interpreted=True),
    case('fixed', optional=(), interpreted=True),
    case('radii_only', optional=('rho_mod',), interpreted=True),
    case('angles_only', optional=('theta_mod',), interpreted=True),
    case('shared', rho_groups=1, theta_groups=1, interpreted=True),
    case('shared_radii', rho_groups=1),
    case('shared_angles', theta_groups=1),
    case('one_token', length=1, batch=1, interpreted=True),
    case('two_tokens', length=2),
    case('length_67', length=67, interpreted=True),
    case('length_131', length=131, batch=3),
    case('one_group', groups=1, rho_groups=1, theta_groups=1),
    case('groups_17', groups=17, rho_groups=17, theta_groups=1),
    case('one_pair', pairs=1, reals=0, interpreted=True),
    case('one_real', pairs=0, reals=1, interpreted=True),
    case('one_real_fixed', pairs=0, reals=1, optional=()),
    case('reals_with_angles', pairs=0, reals=2, optional=('theta_mod',)),
    case('pairs_fixed', pairs=2, reals=0, optional=()),
    case('three_pairs', pairs=3, reals=0),
    case('three_reals', pairs=0, reals=3),
    case('order_6', pairs=2, reals=2),
    case('order_7', pairs=3, reals=1),
    case('order_8', pairs=3, reals=2),
    case('order_8_pairs', pairs=4, reals=0),
    case(
        'options',
        options={
            'eps': 0.2,
            'delta_min': 0.0,
            'delta_0': 2.0,
            'lambda_theta': 0.0,
        },
        interpreted=True,
    ),
    # Half of the angles beyond pi.
    case(
        'clipped', options={'lambda_theta': 0.95}, scale=3.0, interpreted=True
    ),
    case('near_zero', shift=-20.0),
    case('near_circle', shift=12.0),
    case('saturated', scale=12.0),
    case('strided', layouts=dict.fromkeys(POLES, swapped)),
    case('tokens_last', layouts=dict.fromkeys(MODULATIONS, reordered)),
    case('sliced', layouts=dict.fromkeys((*POLES, *MODULATIONS), sliced)),
    case(
        'expanded',
        layouts={
            'rho_mod': expanded(0, 2),
            'theta_mod': expanded(1),
            'rho_hat': expanded(0),
            'sign_hat': expanded(0, 1),
        },
        interpreted=True,
    ),
    case(
        'mixed_modulation',
        runs_in=('float32',),
        dtypes={'rho_mod': torch.bfloat16, 'theta_mod': torch.float16},
        interpreted=True,
    ),
    case(
        'double_modulation',
        runs_in=('float32',),
        dtypes={'rho_mod': torch.float64, 'sign_hat': torch.float64},
    ),
    case(
        'tcp_vim_tiny',
        length=197,
        batch=8,
        groups=12,
        rho_groups=1,
        theta_groups=12,
        runs_in=('float32',),
        large=True,
    ),
]
