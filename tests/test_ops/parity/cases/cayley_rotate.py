"""Cases of the Cayley rotation."""

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

HALF = ('float32', 'bfloat16', 'float16')


def make(
    batch: int = 2,
    heads: int = 3,
    headdim: int = 5,
    state: int = 8,
    rank: int = 2,
    strength: float = 1.0,
) -> dict[str, Tensor]:
    draw = Draw()
    planes = (batch, heads, state, rank)
    return {
        'state': draw.normal(batch, heads, headdim, state),
        'U': draw.normal(*planes) / state**0.5,
        'V': draw.normal(*planes) / state**0.5,
        'theta': strength * draw.normal(batch, heads, rank),
    }


def case(
    name: str,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    large: bool = False,
    layouts: dict[str, Any] | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
    **sizes: Any,
) -> Case:
    return Case(
        'cayley_rotate',
        name,
        functools.partial(make, **sizes),
        {},
        layouts or {},
        (),
        dtypes or {},
        runs_in,
        interpreted,
        large,
    )


ALL = ('state', 'U', 'V', 'theta')
CASES = [
    case('all', runs_in=(*HALF, 'float64'), interpreted=True),
    *(case(f'rank_{n}', rank=n, interpreted=True) for n in (1, 3, 4)),
    case('rank_8', rank=8, state=16),
    case('rank_above_state', rank=5, state=4, interpreted=True),
    case('state_1', state=1, rank=1),
    case('state_2', state=2, rank=1),
    case('state_17', state=17, headdim=16, interpreted=True),
    case('state_64', state=64, headdim=7, rank=4),
    case('headdim_1', headdim=1),
    case('headdim_67', headdim=67, interpreted=True),
    case('one_of_all', batch=1, heads=1, headdim=1, state=1, rank=1),
    case('no_rotation', strength=0.0, interpreted=True),
    case('strong', strength=20.0),
    case('swapped', layouts=dict.fromkeys(ALL, swapped), interpreted=True),
    case('batch_last', layouts=dict.fromkeys(ALL, reordered)),
    case('sliced', layouts=dict.fromkeys(ALL, sliced)),
    case(
        'expanded',
        layouts={
            'state': expanded(0),
            'U': expanded(0, 1),
            'theta': expanded(2),
        },
        interpreted=True,
    ),
    case(
        'half_planes',
        runs_in=('float32',),
        dtypes={'U': torch.bfloat16, 'V': torch.float16},
    ),
    case(
        'surgical',
        batch=4,
        heads=24,
        headdim=64,
        state=64,
        rank=4,
        runs_in=HALF,
        large=True,
    ),
]
