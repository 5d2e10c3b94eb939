"""Cases of the SSD recurrence and its step."""

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

OPTIONAL = ('D', 'z', 'dt_bias', 'initial_states')
PARAMETERS = ('A', 'D', 'dt_bias', 'initial_states')
HALF = ('float32', 'bfloat16', 'float16')


def make(
    length: int = 7,
    batch: int = 2,
    heads: int = 4,
    headdim: int = 5,
    groups: int = 2,
    state: int = 3,
    optional: tuple[str, ...] = OPTIONAL,
    skip_per_channel: bool = False,
    packed: tuple[int, ...] | None = None,
    scale_of_A: float = 1.0,
) -> dict[str, Tensor]:
    """Tensor arguments; ``packed``: length of every packed sequence."""
    draw = Draw()
    shape = (batch, length, heads, headdim)
    tensors = {
        'x': draw.normal(*shape),
        'dt': draw.uniform(0.1, 1, *shape[:3]),
        'A': -scale_of_A * draw.uniform(0.2, 2, heads),
        'B': draw.normal(batch, length, groups, state),
        'C': draw.normal(batch, length, groups, state),
        'D': draw.normal(*((heads, headdim)[: 1 + skip_per_channel])),
        'z': draw.normal(*shape),
        'dt_bias': 0.5 * draw.normal(heads),
        'initial_states': draw.normal(batch, heads, headdim, state),
    }
    absent = set(OPTIONAL) - set(optional)
    tensors = {n: t for n, t in tensors.items() if n not in absent}
    if packed is not None:
        numbers = torch.arange(len(packed), dtype=torch.int32)
        row = numbers.repeat_interleave(torch.tensor(packed))
        # Sequences of the other videos are packed the other way round.
        rows = [row.flip(0) if i % 2 else row for i in range(batch)]
        tensors['seq_idx'] = torch.stack(rows)
    return tensors


def case(
    name: str,
    chunk_size: int = 4,
    softplus: bool = True,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    large: bool = False,
    layouts: dict[str, Any] | None = None,
    dtypes: dict[str, torch.dtype] | None = None,
    parameters: tuple[str, ...] = PARAMETERS,
    **sizes: Any,
) -> Case:
    return Case(
        'ssd_chunk_scan',
        name,
        functools.partial(make, **sizes),
        {
            'chunk_size': chunk_size,
            'dt_softplus': softplus,
            'return_final_states': True,
        },
        layouts or {},
        parameters,
        dtypes or {},
        runs_in,
        interpreted,
        large,
    )


ALONG_TIME = ('x', 'dt', 'B', 'C', 'z')
SCANS = [
    case('all', runs_in=(*HALF, 'float64'), interpreted=True),
    case('nothing', softplus=False, optional=(), interpreted=True),
    case('skip', softplus=False, optional=('D',)),
    case('gate', softplus=False, optional=('z',)),
    case('bias', softplus=False, optional=('dt_bias',)),
    case('softplus', optional=()),
    case('states', softplus=False, optional=('initial_states',)),
    case('skip_per_channel', skip_per_channel=True, interpreted=True),
    case('one_frame', length=1, interpreted=True),
    case('two_frames', length=2),
    *(case(f'length_{n}', length=n) for n in (3, 4, 5, 8, 9, 13)),
    *(case(f'chunk_{n}', chunk_size=n, length=13) for n in (1, 2, 13, 64)),
    *(case(f'of_64_{n}', chunk_size=64, length=n) for n in (63, 64, 65)),
    case('chunk_16', chunk_size=16, length=19, interpreted=True),
    case('group_per_head', groups=4),
    case('one_group', groups=1, interpreted=True),
    case('heads_of_17', headdim=17, state=19, interpreted=True),
    case('heads_of_1', headdim=1, state=1),
    case('heads_3', heads=3, groups=1, headdim=16, state=16),
    case('fast_decay', scale_of_A=100.0),
    case('packed', packed=(3, 4), interpreted=True),
    case('packed_often', packed=(1, 1, 2, 1, 6), length=11, chunk_size=4),
    case('packed_chunks', packed=(4, 4, 1), length=9),
    case('packed_alone', packed=(3, 4), optional=(), softplus=False),
    case('heads_first', layouts=dict.fromkeys(ALONG_TIME, reordered)),
    case('swapped', layouts=dict.fromkeys(ALONG_TIME, swapped)),
    case('sliced', layouts=dict.fromkeys((*ALONG_TIME, 'A'), sliced)),
    case(
        'parts',
        layouts={'x': part(2), 'z': part(2), 'B': part(3), 'C': part(3)},
        interpreted=True,
    ),
    case(
        'expanded',
        layouts={
            'x': expanded(0),
            'dt': expanded(2),
            'B': expanded(1),
            'A': expanded(0),
            'z': expanded(0, 1, 2, 3),
            'initial_states': expanded(0, 3),
        },
        interpreted=True,
    ),
    case('strided_states', layouts={'initial_states': swapped}),
    case('half_everything', runs_in=HALF, parameters=()),
    case(
        'double_parameters',
        runs_in=('float32',),
        dtypes=dict.fromkeys(PARAMETERS, torch.float64),
    ),
    case(
        'surgical',
        length=300,
        batch=1,
        heads=24,
        headdim=64,
        groups=1,
        state=64,
        chunk_size=64,
        runs_in=HALF,
        large=True,
    ),
    case(
        'packed_large',
        length=517,
        heads=8,
        headdim=64,
        groups=2,
        state=128,
        chunk_size=64,
        packed=(100, 28, 261, 128),
        runs_in=HALF,
        large=True,
    ),
]


def make_step(**sizes: Any) -> dict[str, Tensor]:
    tensors = make(length=1, **sizes)
    for name in ALONG_TIME:
        if name in tensors:
            tensors[name] = tensors[name].squeeze(1)
    tensors['state'] = tensors.pop('initial_states')
    return tensors


def step(
    name: str,
    runs_in: tuple[str, ...] = ('float64', 'float32'),
    interpreted: bool = False,
    layouts: dict[str, Any] | None = None,
    **sizes: Any,
) -> Case:
    return Case(
        'ssd_step',
        name,
        functools.partial(make_step, **sizes),
        {'dt_softplus': True},
        layouts or {},
        (*PARAMETERS, 'state'),
        {},
        runs_in,
        interpreted,
    )


STEPS = [
    step('all', runs_in=(*HALF, 'float64'), interpreted=True),
    step('nothing', optional=('initial_states',)),
    step('skip_per_channel', skip_per_channel=True, groups=1),
    step('strided', layouts={'state': swapped, 'x': swapped, 'B': sliced}),
]
CASES = SCANS + STEPS
