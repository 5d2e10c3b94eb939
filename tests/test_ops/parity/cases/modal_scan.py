"""Cases of the modal scan and its step."""

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

OPTIONAL = ('x', 'D', 'z', 'initial_state')
POLES = ('real', 'pair_re', 'pair_im')
PARAMETERS = (*POLES, 'residues', 'D', 'initial_state')
HALF = ('float32', 'bfloat16', 'float16')


def make(
    length: int = 7,
    batch: int = 2,
    channels: int = 6,
    groups: int = 2,
    reals: int = 1,
    pairs: int = 2,
    optional: tuple[str, ...] = OPTIONAL,
) -> dict[str, Tensor]:
    draw = Draw()
    shape = (batch, length, channels)
    modes = reals + 2 * pairs
    radius = draw.uniform(0.1, 0.95, batch, length, groups, pairs)
    angle = draw.uniform(0.0, 3.0, batch, length, groups, pairs)
    tensors = {
        'eta': draw.normal(*shape),
        'real': draw.uniform(-0.95, 0.95, batch, length, groups, reals),
        'pair_re': radius * angle.cos(),
        'pair_im': radius * angle.sin(),
        'residues': draw.normal(groups, modes),
        'x': draw.normal(*shape),
        'D': draw.normal(channels),
        'z': draw.normal(*shape),
        'initial_state': draw.normal(batch, modes, channels),
    }
    absent = set(OPTIONAL) - set(optional)
    return {n: t for n, t in tensors.items() if n not in absent}


def case(
    name: str,
    reverse: bool = False,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    layouts: dict[str, Any] | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
    parameters: tuple[str, ...] = PARAMETERS,
    **sizes: Any,
) -> Case:
    return Case(
        'modal_scan',
        name,
        functools.partial(make, **sizes),
        {'return_final_state': True, 'reverse': reverse},
        layouts or {},
        parameters,
        dtypes or {},
        runs_in,
    )


DATA = ('eta', 'x', 'z')
SCANS = [
    case('all', runs_in=(*HALF, 'float64')),
    case('all_reverse', reverse=True, runs_in=HALF),
    case('nothing', optional=()),
    case('nothing_reverse', optional=(), reverse=True),
    case('gate', optional=('z',), runs_in=HALF),
    case('state', optional=('initial_state',)),
    case('one_token', length=1),
    case('two_tokens', length=2),
    case('length_67', length=67),
    case('length_67_reverse', length=67, reverse=True),
    case('one_real', reals=1, pairs=0),
    case('one_pair', reals=0, pairs=1, reverse=True),
    case('order_8', reals=2, pairs=3),
    case('group_per_channel', groups=6),
    case('groups_of_17', channels=34),
    case('channels_first', layouts=dict.fromkeys(DATA, swapped)),
    case(
        'channels_first_reverse',
        layouts=dict.fromkeys(DATA, swapped),
        reverse=True,
    ),
    case('tokens_last', layouts=dict.fromkeys((*DATA, *POLES), reordered)),
    case('sliced', layouts=dict.fromkeys((*DATA, *POLES, 'D'), sliced)),
    case('parts', layouts={'eta': part(2), 'x': part(1), 'real': part(3)}),
    case('fixed_poles', layouts=dict.fromkeys(POLES, expanded(0, 1))),
    case(
        'expanded',
        layouts={
            'eta': expanded(0, 2),
            'z': expanded(0, 1, 2),
            'residues': expanded(1),
            'initial_state': expanded(1),
        },
    ),
    case('half_everything', runs_in=HALF, parameters=()),
    case(
        'double_parameters',
        runs_in=('float32',),
        dtypes=dict.fromkeys(PARAMETERS, torch.float64),
    ),
]


def make_step(**sizes: Any) -> dict[str, Tensor]:
    tensors = make(length=1, **sizes)
    for name in (*DATA, *POLES):
        if name in tensors:
            tensors[name] = tensors[name].squeeze(1)
    tensors['state'] = tensors.pop('initial_state')
    return tensors


def step(name: str, **sizes: Any) -> Case:
    return Case(
        'modal_scan_step',
        name,
        functools.partial(make_step, **sizes),
        parameters=(*PARAMETERS, 'state'),
    )


CASES = [
    *SCANS,
    step('all'),
    step('nothing', optional=('initial_state',)),
    step('one_real', reals=1, pairs=0),
]
