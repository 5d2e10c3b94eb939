"""Cases of the pole scan and its step."""

import functools
from typing import Any

import torch
from torch import Tensor

from mmssm.ops import pole_denominator
from tests.test_ops.parity.case import (
    Case,
    Draw,
    expanded,
    part,
    reordered,
    sliced,
    swapped,
)

OPTIONAL = ('x', 'D', 'z', 'initial_history')
PARAMETERS = ('q', 'D', 'initial_history')
HALF = ('float32', 'bfloat16', 'float16')


def coefficients(
    draw: Draw, batch: int, length: int, groups: int, order: int
) -> Tensor:
    """Poles as they are in models: inside the circle, slowly varying."""
    pairs, reals = divmod(order, 2)
    tokens = (batch, length, groups)
    return pole_denominator(
        draw.normal(groups, pairs),
        draw.normal(groups, pairs),
        draw.normal(groups, reals),
        draw.normal(groups, reals),
        0.1 * draw.normal(*tokens),
        draw.normal(*tokens),
        backend='reference',
    )


def make(
    length: int = 7,
    batch: int = 2,
    channels: int = 6,
    groups: int = 2,
    order: int = 3,
    optional: tuple[str, ...] = OPTIONAL,
) -> dict[str, Tensor]:
    draw = Draw()
    shape = (batch, length, channels)
    tensors = {
        'eta': draw.normal(*shape),
        'q': coefficients(draw, batch, length, groups, order),
        'x': draw.normal(*shape),
        'D': draw.normal(channels),
        'z': draw.normal(*shape),
        'initial_history': draw.normal(batch, order, channels),
    }
    absent = set(OPTIONAL) - set(optional)
    return {n: t for n, t in tensors.items() if n not in absent}


def case(
    name: str,
    reverse: bool = False,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    large: bool = False,
    layouts: dict[str, Any] | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
    parameters: tuple[str, ...] = PARAMETERS,
    **sizes: Any,
) -> Case:
    return Case(
        'pole_scan',
        name,
        functools.partial(make, **sizes),
        {'return_final_history': True, 'reverse': reverse},
        layouts or {},
        parameters,
        dtypes or {},
        runs_in,
        interpreted,
        large,
    )


DATA = ('eta', 'x', 'z')
SCANS = [
    case('all', runs_in=(*HALF, 'float64'), interpreted=True),
    case('all_reverse', reverse=True, runs_in=HALF, interpreted=True),
    case('nothing', optional=(), runs_in=(*HALF, 'float64'), interpreted=True),
    case('nothing_reverse', optional=(), reverse=True, interpreted=True),
    case('skip', optional=('x', 'D'), runs_in=HALF),
    case('gate', optional=('z',), runs_in=HALF, interpreted=True),
    case('skip_and_gate', optional=('x', 'D', 'z')),
    case('history', optional=('initial_history',)),
    case('history_reverse', optional=('initial_history',), reverse=True),
    case('one_token', length=1, interpreted=True),
    case('one_token_reverse', length=1, reverse=True),
    case('two_tokens', length=2),
    *(case(f'length_{n}', length=n) for n in (63, 64, 65, 197)),
    case('length_197_reverse', length=197, reverse=True),
    case('length_37', length=37, channels=3, groups=1, interpreted=True),
    case('one_of_all', length=1, batch=1, channels=1, groups=1, order=1),
    *(case(f'order_{n}', order=n, length=11) for n in (2, 4, 6, 7, 8)),
    case('order_1', order=1, interpreted=True),
    case('order_5', order=5, interpreted=True),
    case('order_5_reverse', order=5, reverse=True, length=11),
    case('order_above_length', order=5, length=2, interpreted=True),
    case('order_above_length_reverse', order=5, length=3, reverse=True),
    case('order_above_one_token', order=4, length=1, optional=()),
    case('group_per_channel', groups=6),
    case('one_group', groups=1),
    case('groups_of_17', channels=34, groups=2, interpreted=True),
    case('groups_of_16', channels=48, groups=3, order=5),
    case('groups_of_32', channels=64, groups=2, order=5, length=13),
    case('groups_of_67', channels=67, groups=1, order=5, length=13),
    case('groups_of_5', channels=35, groups=7, reverse=True),
    case(
        'channels_first',
        layouts=dict.fromkeys(DATA, swapped),
        runs_in=(*HALF, 'float64'),
        interpreted=True,
    ),
    case(
        'channels_first_reverse',
        layouts=dict.fromkeys(DATA, swapped),
        channels=35,
        groups=1,
        reverse=True,
    ),
    case('tokens_last', layouts=dict.fromkeys((*DATA, 'q'), reordered)),
    case('sliced', layouts=dict.fromkeys((*DATA, 'q', 'D'), sliced)),
    case(
        'parts',
        layouts={'eta': part(2), 'x': part(1), 'z': part(2), 'q': part(3)},
        interpreted=True,
    ),
    case('fixed_poles', layouts={'q': expanded(0, 1)}, interpreted=True),
    case(
        'expanded',
        layouts={
            'eta': expanded(0, 2),
            'x': expanded(1),
            'z': expanded(0, 1, 2),
            'q': expanded(2, 3),
            'D': expanded(0),
            'initial_history': expanded(1),
        },
    ),
    case('strided_history', layouts={'initial_history': swapped}),
    case(
        'half_everything',
        length=5,
        runs_in=HALF,
        parameters=(),
        interpreted=True,
    ),
    case(
        'double_parameters',
        runs_in=('float32',),
        dtypes=dict.fromkeys(PARAMETERS, torch.float64),
    ),
    case(
        'mixed_data',
        runs_in=('bfloat16',),
        dtypes={'x': torch.float32, 'z': torch.float16},
    ),
    case(
        'tcp_vim_tiny',
        length=197,
        batch=8,
        channels=384,
        groups=12,
        order=5,
        optional=('x', 'D', 'z'),
        runs_in=HALF,
        large=True,
    ),
    case(
        'long',
        length=3137,
        channels=192,
        groups=6,
        order=5,
        reverse=True,
        layouts=dict.fromkeys(DATA, swapped),
        runs_in=HALF,
        large=True,
    ),
]


def make_step(**sizes: Any) -> dict[str, Tensor]:
    tensors = make(length=1, **sizes)
    for name in (*DATA, 'q'):
        if name in tensors:
            tensors[name] = tensors[name].squeeze(1)
    tensors['history'] = tensors.pop('initial_history')
    return tensors


def step(
    name: str,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    layouts: dict[str, Any] | None = None,
    **sizes: Any,
) -> Case:
    return Case(
        'pole_scan_step',
        name,
        functools.partial(make_step, **sizes),
        {},
        layouts or {},
        (*PARAMETERS, 'history'),
        {},
        runs_in,
        interpreted,
    )


STEPS = [
    step('all', runs_in=(*HALF, 'float64'), interpreted=True),
    step('nothing', optional=('initial_history',)),
    step('order_5', order=5, channels=33, groups=3),
    step('strided', layouts={'history': swapped, 'eta': swapped}),
]
CASES = SCANS + STEPS
