"""Cases of the causal convolution."""

import functools
from typing import Any

import torch
from torch import Tensor

from tests.test_ops.parity.case import (
    Case,
    Draw,
    expanded,
    part,
    reordered,
    sliced,
    swapped,
)

OPTIONAL = ('bias', 'initial_states')
HALF = ('float32', 'bfloat16', 'float16')


def make(
    length: int = 7,
    batch: int = 2,
    dim: int = 3,
    width: int = 4,
    optional: tuple[str, ...] = OPTIONAL,
) -> dict[str, Tensor]:
    draw = Draw()
    tensors = {
        'x': draw.normal(batch, dim, length),
        'weight': draw.normal(dim, width),
        'bias': draw.normal(dim),
        'initial_states': draw.normal(batch, dim, width - 1),
    }
    absent = set(OPTIONAL) - set(optional)
    return {n: t for n, t in tensors.items() if n not in absent}


def case(
    name: str,
    reverse: bool = False,
    activation: str | None = 'silu',
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    large: bool = False,
    layouts: dict[str, Any] | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
    parameters: tuple[str, ...] = ('weight', 'bias'),
    **sizes: Any,
) -> Case:
    return Case(
        'causal_conv1d',
        name,
        functools.partial(make, **sizes),
        {
            'return_final_states': True,
            'activation': activation,
            'reverse': reverse,
        },
        layouts or {},
        parameters,
        dtypes or {},
        runs_in,
        interpreted,
        large,
    )


CASES = [
    case('all', runs_in=(*HALF, 'float64'), interpreted=True),
    case('all_reverse', reverse=True, runs_in=HALF, interpreted=True),
    case('nothing', activation=None, optional=(), interpreted=True),
    case('nothing_reverse', activation=None, optional=(), reverse=True),
    case('swish', activation='swish', optional=('bias',)),
    case('linear', activation=None),
    case('bias_only', optional=('bias',), interpreted=True),
    case('states_only', activation=None, optional=('initial_states',)),
    *(
        case(f'width_{n}', width=n, interpreted=n in (1, 2, 5, 8))
        for n in range(1, 9)
    ),
    *(
        case(f'width_{n}_reverse', width=n, reverse=True, length=11)
        for n in (1, 2, 3, 5, 8)
    ),
    case('width_1_alone', width=1, optional=()),
    *(case(f'length_{n}', length=n) for n in (2, 4, 63, 64, 65, 131)),
    case('one_token', length=1, interpreted=True),
    case('one_token_reverse', length=1, reverse=True, interpreted=True),
    case('shorter_than_filter', length=3, width=8, interpreted=True),
    case('shorter_than_filter_reverse', length=3, width=8, reverse=True),
    case('shorter_without_states', length=2, width=6, optional=()),
    case('one_of_all', length=1, batch=1, dim=1, width=1),
    case('channels_17', dim=17, interpreted=True),
    case('channels_67', dim=67, length=19),
    case('channels_67_reverse', dim=67, length=130, reverse=True),
    case(
        'channels_last',
        layouts={'x': swapped},
        runs_in=(*HALF, 'float64'),
        interpreted=True,
    ),
    case(
        'channels_last_reverse',
        layouts={'x': swapped},
        reverse=True,
        dim=35,
        interpreted=True,
    ),
    case('channels_last_long', layouts={'x': swapped}, dim=67, length=131),
    case('channels_last_alone', layouts={'x': swapped}, optional=()),
    case('batch_last', layouts={'x': reordered}),
    case('sliced', layouts={'x': sliced, 'weight': sliced, 'bias': sliced}),
    case('part', layouts={'x': part(1)}, interpreted=True),
    case(
        'part_of_channels_last',
        layouts={'x': lambda t: part(2)(t.mT).mT},
        interpreted=True,
    ),
    case(
        'expanded',
        layouts={
            'x': expanded(0, 2),
            'weight': expanded(0),
            'bias': expanded(0),
            'initial_states': expanded(2),
        },
        interpreted=True,
    ),
    case('expanded_channels', layouts={'x': expanded(1)}),
    case(
        'strided_parameters',
        layouts={'weight': swapped, 'initial_states': swapped},
    ),
    case('half_everything', runs_in=HALF, parameters=()),
    case(
        'float_states_of_half',
        runs_in=('bfloat16',),
        dtypes={'initial_states': torch.float32},
        interpreted=True,
    ),
    case(
        'double_parameters',
        runs_in=('float32',),
        dtypes={'weight': torch.float64, 'bias': torch.float64},
    ),
    case(
        'vim_tiny',
        length=197,
        batch=8,
        dim=384,
        optional=('bias',),
        runs_in=HALF,
        large=True,
    ),
    case(
        'long',
        length=3137,
        dim=768,
        layouts={'x': swapped},
        runs_in=HALF,
        large=True,
    ),
]
