"""Cases of the gated RMS normalisation."""

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
)

OPTIONAL = ('bias', 'z')
HALF = ('float32', 'bfloat16', 'float16')


def make(
    shape: tuple[int, ...] = (2, 3, 12),
    optional: tuple[str, ...] = OPTIONAL,
) -> dict[str, Tensor]:
    draw = Draw()
    tensors = {
        'x': draw.normal(*shape),
        'weight': draw.normal(shape[-1]),
        'bias': draw.normal(shape[-1]),
        'z': draw.normal(*shape),
    }
    absent = set(OPTIONAL) - set(optional)
    return {n: t for n, t in tensors.items() if n not in absent}


def case(
    name: str,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    large: bool = False,
    layouts: dict[str, Any] | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
    parameters: tuple[str, ...] = ('weight', 'bias'),
    **sizes: Any,
) -> Case:
    return Case(
        'rms_norm_gated',
        name,
        functools.partial(make, **sizes),
        {'group_size': group_size, 'norm_before_gate': norm_before_gate},
        layouts or {},
        parameters,
        dtypes or {},
        runs_in,
        interpreted,
        large,
    )


CASES = [
    case('gate_first', runs_in=(*HALF, 'float64'), interpreted=True),
    case(
        'norm_first',
        norm_before_gate=True,
        runs_in=(*HALF, 'float64'),
        interpreted=True,
    ),
    case('plain', optional=(), interpreted=True),
    case('plain_norm_first', optional=(), norm_before_gate=True),
    case('bias_only', optional=('bias',), interpreted=True),
    case('gate_only', optional=('z',), interpreted=True),
    case('gate_only_norm_first', optional=('z',), norm_before_gate=True),
    case('groups_of_4', group_size=4, interpreted=True),
    case('groups_of_4_norm_first', group_size=4, norm_before_gate=True),
    case('groups_of_1', group_size=1, interpreted=True),
    case('groups_of_12', group_size=12),
    case('groups_of_17', shape=(5, 51), group_size=17, interpreted=True),
    case('one_row', shape=(7,), interpreted=True),
    case('one_number', shape=(1,)),
    case('rows_67', shape=(67, 5), interpreted=True),
    case('dim_131', shape=(3, 131), norm_before_gate=True, interpreted=True),
    case('four_axes', shape=(2, 1, 3, 8)),
    case(
        'batch_last',
        layouts={'x': reordered, 'z': reordered},
        interpreted=True,
    ),
    case('sliced', layouts=dict.fromkeys(('x', 'z', 'weight'), sliced)),
    case('parts', layouts={'x': part(2), 'z': part(1)}, interpreted=True),
    case(
        'expanded',
        layouts={'x': expanded(0, 1), 'z': expanded(2), 'weight': expanded(0)},
        interpreted=True,
    ),
    case('half_everything', runs_in=HALF, parameters=()),
    case(
        'double_parameters',
        runs_in=('float32',),
        dtypes={'weight': torch.float64, 'z': torch.bfloat16},
    ),
    case('large', shape=(4, 300, 1536), runs_in=HALF, large=True),
    case(
        'large_groups',
        shape=(1200, 1536),
        group_size=64,
        norm_before_gate=True,
        runs_in=HALF,
        large=True,
    ),
]
