"""Every backend against the definition: outputs, states, all gradients."""

import pytest
import torch

from mmssm.ops.availability import native_obstacle
from mmssm.ops.precision import working_dtype
from tests.test_ops.parity.cases import CASES, FORWARD_ONLY
from tests.test_ops.parity.run import compare, expected, leaves_of, run

# Their custom operators promise an output in the memory layout of the input.
KEEP_LAYOUT = ('selective_scan', 'pole_scan', 'causal_conv1d')


def test_equals_definition(case, backend, dtype, device):
    actual = run(case, dtype, backend, device)
    reference = expected(case.op, case.name, dtype, device)
    compare(actual, reference, backend, dtype)
    _check_dtypes(case, dtype, actual)
    if case.op in KEEP_LAYOUT:
        first = next(iter(case.tensors(dtype, device).values()))
        like = torch.empty_like(first)
        assert actual['out0'].stride() == like.stride()


@pytest.mark.parametrize(
    ('forward_case', 'dtype'),
    [
        pytest.param(case, getattr(torch, dtype), id=f'{case}-{dtype}')
        for case in CASES
        for dtype in case.runs_in
        if 'native' in FORWARD_ONLY.get(case.op, ())
    ],
)
def test_without_gradients_equals_definition(forward_case, dtype, device):
    obstacle = native_obstacle()
    if device != 'cpu' or obstacle:
        pytest.skip(obstacle or 'the kernels run on a CPU')
    tensors = forward_case.tensors(dtype)
    reference = expected(forward_case.op, forward_case.name, dtype)
    outputs = forward_case.call(tensors, 'native')
    actual = {f'out{i}': out for i, out in enumerate(outputs)}
    exact = {name: reference[name] for name in actual}
    compare(actual, exact, 'native', dtype)
    assert outputs[0].dtype == dtype
    assert outputs[1].dtype == working_dtype(dtype)
    with pytest.raises(RuntimeError, match='no gradients'):
        forward_case.call(leaves_of(tensors), 'native')


def _check_dtypes(case, dtype, actual):
    tensors = case.tensors(dtype)
    first = next(iter(tensors.values())).dtype
    work = working_dtype(first)
    expected_dtypes = {'out0': first, 'out1': work}
    if case.op in ('pole_denominator', 'cayley_rotate'):
        expected_dtypes['out0'] = work
    if case.op == 'causal_conv1d':
        state = tensors.get('initial_states', tensors['x'])
        expected_dtypes['out1'] = state.dtype
    for name, tensor in tensors.items():
        expected_dtypes[f'grad_{name}'] = tensor.dtype
    for name, value in actual.items():
        assert value.dtype == expected_dtypes[name], name
