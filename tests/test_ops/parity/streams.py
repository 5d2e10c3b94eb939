"""The operators that run along time, and how to feed them in parts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmssm import ops
from tests.test_ops.parity.case import Case
from tests.test_ops.parity.cases import BACKENDS


@dataclass(frozen=True)
class Stream:
    """An operator along time.

    Attributes:
        axis (int): Axis of time in data and output.
        data (tuple[str, ...]): Arguments with that axis.
        state (str): Argument that carries the state in.
        step (str): Operator of one token.
        step_state (str): Its argument that carries the state in.
        reversible (bool): Whether it can run from the last token.
        step_has_backend (bool): Whether its step takes a backend.
    """

    axis: int
    data: tuple[str, ...]
    state: str
    step: str
    step_state: str
    reversible: bool = True
    step_has_backend: bool = True


STREAMS = {
    'selective_scan': Stream(
        -1,
        ('u', 'delta', 'z', 'B', 'C'),
        'initial_state',
        'selective_scan_step',
        'state',
    ),
    'pole_scan': Stream(
        1,
        ('eta', 'q', 'x', 'z'),
        'initial_history',
        'pole_scan_step',
        'history',
    ),
    'modal_scan': Stream(
        1,
        ('eta', 'real', 'pair_re', 'pair_im', 'x', 'z'),
        'initial_state',
        'modal_scan_step',
        'state',
    ),
    'causal_conv1d': Stream(
        -1,
        ('x',),
        'initial_states',
        'causal_conv1d_step',
        'conv_state',
        step_has_backend=False,
    ),
    'ssd_chunk_scan': Stream(
        1,
        ('x', 'dt', 'B', 'C', 'z'),
        'initial_states',
        'ssd_step',
        'state',
        reversible=False,
    ),
}


def in_parts(
    case: Case, leaves: dict[str, Tensor], backend: str, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Feed parts of the given lengths one after the other."""
    stream = STREAMS[case.op]
    reverse = case.options.get('reverse', False)
    pieces = {
        name: leaves[name].split(list(sizes), stream.axis)
        for name in stream.data
    }
    state, outputs = leaves[stream.state], []
    order = range(len(sizes))
    for i in reversed(order) if reverse else order:
        part = {name: piece[i] for name, piece in pieces.items()}
        tensors = leaves | part | {stream.state: state}
        y, state = case.call(tensors, backend)
        outputs.append(y)
    if reverse:
        outputs.reverse()
    return torch.cat(outputs, stream.axis), state


def in_steps(
    case: Case, leaves: dict[str, Tensor], backend: str
) -> tuple[Tensor, Tensor]:
    """Feed token by token through the operator of one step."""
    stream = STREAMS[case.op]
    step = getattr(ops, stream.step)
    options = {
        name: value
        for name, value in case.options.items()
        if name in ('delta_softplus', 'dt_softplus', 'activation')
    }
    # A step without gradients is one that the backend cannot serve here.
    if stream.step_has_backend and backend in BACKENDS[stream.step]:
        options['backend'] = backend
    tokens = {name: leaves[name].unbind(stream.axis) for name in stream.data}
    others = {
        name: leaf
        for name, leaf in leaves.items()
        if name not in stream.data and name != stream.state
    }
    state, outputs = leaves[stream.state], []
    for t in range(leaves[stream.data[0]].shape[stream.axis]):
        token = {name: column[t] for name, column in tokens.items()}
        token[stream.step_state] = state
        y, state = step(**token, **others, **options)
        outputs.append(y)
    return torch.stack(outputs, stream.axis), state
