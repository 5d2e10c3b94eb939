"""Cases of the selective scan and its step."""

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

OPTIONAL = ('D', 'z', 'delta_bias', 'initial_state')
PARAMETERS = ('A', 'D', 'delta_bias', 'initial_state')
HALF = ('float32', 'bfloat16', 'float16')


def make(
    length: int = 7,
    batch: int = 2,
    dim: int = 6,
    state: int = 4,
    groups: int | None = 2,
    groups_of_C: int | None = -1,
    optional: tuple[str, ...] = OPTIONAL,
    scale_of_A: float = 1.0,
    scale_of_delta: float = 1.0,
) -> dict[str, Tensor]:
    """Tensor arguments; ``groups`` 0: constant matrices, None: no groups."""
    draw = Draw()

    def matrix(groups: int | None) -> Tensor:
        if groups == 0:
            return draw.normal(dim, state)
        if groups is None:
            return draw.normal(batch, state, length)
        return draw.normal(batch, groups, state, length)

    tensors = {
        'u': draw.normal(batch, dim, length),
        'delta': scale_of_delta * draw.uniform(0.1, 1, batch, dim, length),
        'A': -scale_of_A * draw.uniform(0.2, 2, dim, state),
        'B': matrix(groups),
        'C': matrix(groups if groups_of_C == -1 else groups_of_C),
        'D': draw.normal(dim),
        'z': draw.normal(batch, dim, length),
        'delta_bias': 0.5 * draw.normal(dim),
        'initial_state': draw.normal(batch, dim, state),
    }
    absent = set(OPTIONAL) - set(optional)
    return {n: t for n, t in tensors.items() if n not in absent}


def case(
    name: str,
    softplus: bool = True,
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
        'selective_scan',
        name,
        functools.partial(make, **sizes),
        {
            'delta_softplus': softplus,
            'return_last_state': True,
            'reverse': reverse,
        },
        layouts or {},
        parameters,
        dtypes or {},
        runs_in,
        interpreted,
        large,
    )


ALONG_TIME = ('u', 'delta', 'z', 'B', 'C')
CHANNELS_LAST = dict.fromkeys(ALONG_TIME, swapped)
SCANS = [
    case('all', runs_in=(*HALF, 'float64'), interpreted=True),
    case('all_reverse', reverse=True, runs_in=HALF, interpreted=True),
    case('nothing', softplus=False, optional=(), interpreted=True),
    case('nothing_reverse', softplus=False, optional=(), reverse=True),
    case('skip', softplus=False, optional=('D',)),
    case('gate', softplus=False, optional=('z',)),
    case('softplus', optional=()),
    case('bias', softplus=False, optional=('delta_bias',), scale_of_delta=2),
    case('state', softplus=False, optional=('initial_state',)),
    case('one_token', length=1, interpreted=True),
    case('one_token_reverse', length=1, reverse=True),
    case('two_tokens', length=2),
    *(case(f'length_{n}', length=n) for n in (63, 64, 128)),
    case('length_65', length=65, batch=1, dim=2, interpreted=True),
    case(
        'length_65_reverse',
        length=65,
        batch=1,
        dim=2,
        reverse=True,
        interpreted=True,
    ),
    case('length_131', length=131),
    case('length_131_reverse', length=131, reverse=True),
    case('one_of_all', length=1, batch=1, dim=1, state=1, groups=1),
    *(case(f'state_{n}', state=n) for n in (1, 2, 3, 5, 8, 15, 16, 17, 64)),
    case('state_16_reverse', state=16, length=11, reverse=True),
    case('no_groups', groups=None, interpreted=True),
    case('group_per_channel', groups=6),
    case('group_of_17', dim=34, groups=2, interpreted=True),
    case('group_of_5', dim=35, groups=7, state=3),
    case('channels_67', dim=67, groups=1, state=16, length=19),
    case('constant', groups=0, interpreted=True),
    case('constant_B', groups=0, groups_of_C=None),
    case('constant_C', groups=2, groups_of_C=0),
    case('more_groups_of_C', groups=1, groups_of_C=3),
    case('fast_decay', scale_of_A=200),
    case('large_steps', scale_of_delta=40, scale_of_A=0.02),
    case(
        'channels_last',
        layouts=CHANNELS_LAST,
        runs_in=(*HALF, 'float64'),
        interpreted=True,
    ),
    case(
        'channels_last_reverse',
        layouts=CHANNELS_LAST,
        dim=37,
        groups=1,
        reverse=True,
    ),
    case('tokens_first', layouts=dict.fromkeys(ALONG_TIME, reordered)),
    case('sliced', layouts=dict.fromkeys((*ALONG_TIME, 'A'), sliced)),
    case(
        'parts',
        layouts={'u': part(1), 'z': part(1), 'B': part(2), 'C': part(2)},
        interpreted=True,
    ),
    case(
        'expanded',
        layouts={
            'delta': expanded(1),
            'u': expanded(0),
            'B': expanded(3),
            'A': expanded(0),
            'D': expanded(0),
            'z': expanded(0, 1, 2),
            'initial_state': expanded(0, 2),
        },
        interpreted=True,
    ),
    case('strided_state', layouts={'initial_state': swapped, 'A': swapped}),
    case('half_everything', runs_in=HALF, parameters=()),
    case(
        'double_parameters',
        runs_in=('float32',),
        dtypes=dict.fromkeys(PARAMETERS, torch.float64),
    ),
    case(
        'float_state_of_half',
        runs_in=('bfloat16',),
        dtypes={'delta': torch.float32, 'C': torch.float32},
    ),
    case(
        'vim_tiny',
        length=197,
        batch=8,
        dim=384,
        state=16,
        groups=1,
        optional=('D', 'z', 'delta_bias'),
        runs_in=HALF,
        large=True,
    ),
    case(
        'long',
        length=3137,
        dim=192,
        state=16,
        groups=1,
        reverse=True,
        layouts=CHANNELS_LAST,
        runs_in=HALF,
        large=True,
    ),
]


def make_step(**sizes: Any) -> dict[str, Tensor]:
    tensors = make(length=1, **sizes)
    for name in ALONG_TIME:
        if name in tensors:
            tensors[name] = tensors[name].squeeze(-1)
    tensors['state'] = tensors.pop('initial_state')
    return tensors


def step(
    name: str,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    layouts: dict[str, Any] | None = None,
    **sizes: Any,
) -> Case:
    return Case(
        'selective_scan_step',
        name,
        functools.partial(make_step, **sizes),
        {'delta_softplus': True},
        layouts or {},
        (*PARAMETERS, 'state'),
        {},
        runs_in,
        interpreted,
    )


STEPS = [
    step('all', runs_in=(*HALF, 'float64'), interpreted=True),
    step('nothing', optional=('initial_state',)),
    step('no_groups', groups=None, state=16, dim=33),
    step('strided', layouts={'state': swapped, 'u': swapped, 'B': sliced}),
]
CASES = SCANS + STEPS
