"""Gradients against finite differences, in float64."""

import pytest
import torch

from tests.test_ops.parity.cases import BACKENDS, find
from tests.test_ops.parity.run import leaves_of
from tests.test_ops.parity.test_properties import basic, resized

# Small enough for a difference per number; longer than a filter.
SIZES = {
    'selective_scan': {'length': 3, 'batch': 1, 'dim': 2, 'state': 2},
    'selective_scan_step': {'batch': 1, 'dim': 2, 'state': 2},
    'pole_scan': {'length': 4, 'batch': 1, 'channels': 4},
    'pole_scan_step': {'batch': 1, 'channels': 4},
    'pole_denominator': {'length': 2, 'batch': 1, 'groups': 3},
    'causal_conv1d': {'length': 3, 'dim': 2, 'width': 3},
    'ssd_chunk_scan': {'length': 5, 'batch': 1, 'headdim': 1, 'state': 2},
    'ssd_step': {'batch': 1, 'headdim': 1, 'state': 2},
    'cayley_rotate': {'batch': 1, 'heads': 1, 'headdim': 2, 'state': 3},
    'rms_norm_gated': {'shape': (2, 4)},
    'modal_scan': {'length': 3, 'batch': 1, 'channels': 4},
    'modal_scan_step': {'batch': 1, 'channels': 4},
    'token_poles': {'length': 2, 'batch': 1},
}


def _gradcheck(case, backend):
    leaves = leaves_of(case.tensors(torch.float64))
    names = list(leaves)

    def call(*tensors):
        return case.call(dict(zip(names, tensors, strict=True)), backend)

    assert torch.autograd.gradcheck(call, list(leaves.values()))


@pytest.mark.parametrize('op', BACKENDS)
def test_definition(op):
    _gradcheck(resized(basic(op), **SIZES[op]), 'reference')


# A difference quotient needs float64, which Triton kernels do not have.
IN_FLOAT64 = ('torch', 'native')


@pytest.mark.each_backend(backends=IN_FLOAT64)
def test_backend(op, backend):
    _gradcheck(resized(basic(op), **SIZES[op]), backend)


@pytest.mark.each_backend(
    'selective_scan', 'pole_scan', 'causal_conv1d', backends=IN_FLOAT64
)
def test_reverse_and_strided(op, backend):
    name = {
        'selective_scan': 'channels_last_reverse',
        'pole_scan': 'channels_first_reverse',
        'causal_conv1d': 'channels_last_reverse',
    }[op]
    case = find(op, name)
    sizes = SIZES[op] | ({'groups': 1} if op != 'causal_conv1d' else {})
    _gradcheck(resized(case, **sizes), backend)
