"""Every backend against the definition: outputs, states, all gradients."""

import torch

from mmssm.ops.precision import working_dtype
from tests.test_ops.parity.run import compare, expected, run

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
