"""Custom operators, torch.compile and torch.export."""

import pytest
import torch
from torch import Tensor

from tests.test_ops.parity.calls import calls_of
from tests.test_ops.parity.cases import BACKENDS, find
from tests.test_ops.parity.run import compare, leaves_of, results
from tests.test_ops.parity.streams import STREAMS
from tests.test_ops.parity.test_properties import basic, resized

# Operators whose torch backend is a custom operator too.
CUSTOM_ON_TORCH = (
    'selective_scan',
    'pole_scan',
    'modal_scan',
    'causal_conv1d',
)
OPTION_SETS = {
    'selective_scan': (
        'all',
        'nothing_reverse',
        'no_groups',
        'channels_last',
        'expanded',
        'length_65_reverse',
        'half_everything',
        'float_state_of_half',
    ),
    'pole_scan': (
        'all',
        'nothing',
        'nothing_reverse',
        'gate',
        'skip',
        'channels_first',
        'tokens_last',
        'expanded',
        'order_above_length',
        'half_everything',
        'mixed_data',
    ),
    'modal_scan': (
        'all',
        'nothing',
        'gate',
        'one_pair',
        'channels_first',
        'tokens_last',
        'expanded',
        'half_everything',
    ),
    'pole_denominator': (
        'all',
        'fixed',
        'angles_only',
        'one_real',
        'one_pair',
        'expanded',
        'mixed_modulation',
    ),
    'causal_conv1d': (
        'all',
        'nothing_reverse',
        'bias_only',
        'width_1_alone',
        'channels_last',
        'batch_last',
        'expanded',
        'half_everything',
    ),
}


def _differentiable(argument):
    if isinstance(argument, Tensor) and argument.is_floating_point():
        return argument.detach().requires_grad_()
    return argument


@pytest.mark.each_backend(*OPTION_SETS, interpreted=False)
def test_custom_operators_are_sound(op, backend, device):
    if device != 'cpu':
        pytest.skip('the operators are the same on every device')
    for name in OPTION_SETS[op]:
        case = find(op, name)
        half = 'bfloat16' in case.runs_in and 'float64' not in case.runs_in
        dtype = torch.bfloat16 if half else torch.float32
        calls = calls_of(case, dtype, backend)
        if backend == 'torch' and op not in CUSTOM_ON_TORCH:
            assert not calls
            return
        forward, backward = calls
        # Tracing is slow and sees the same operator every time.
        tests = ['test_schema', 'test_autograd_registration']
        tests += ['test_faketensor']
        if name == 'all':
            tests.append('test_aot_dispatch_dynamic')
        torch.library.opcheck(
            forward[0],
            tuple(_differentiable(a) for a in forward[1]),
            test_utils=tests,
        )
        torch.library.opcheck(
            backward[0],
            backward[1],
            test_utils=('test_schema', 'test_faketensor'),
        )


KERNELS = tuple(op for op, names in BACKENDS.items() if 'triton' in names)


@pytest.mark.each_backend(*KERNELS, backends=('triton',))
def test_operators_of_triton_are_sound(op, backend, device):
    # All that is checked of the others but a trace, which runs no kernel.
    calls = calls_of(basic(op), torch.float32, backend)
    for function, arguments in calls:
        torch.library.opcheck(
            function, arguments, test_utils=('test_schema', 'test_faketensor')
        )


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize('op', BACKENDS)
def test_compiled_equals_eager(op, device, fresh_compiler):
    case = basic(op)

    def function(tensors):
        return case.call(tensors, None)

    compiled = torch.compile(function, fullgraph=True, backend='aot_eager')
    found = []
    for run in (function, compiled):
        leaves = leaves_of(case.tensors(torch.float32, device))
        found.append(results(run(leaves), leaves))
    compare(found[1], found[0], 'torch', torch.float32)


class Module(torch.nn.Module):
    """An operator as a module with named inputs."""

    def __init__(self, case):
        super().__init__()
        self.case = case

    def forward(self, tensors: dict[str, Tensor]):
        return self.case.call(tensors, None)


ALONG_TIME = (*STREAMS, 'pole_denominator', 'rms_norm_gated')


def _dynamic(op, tensors):
    """Mark the axis of time of every tensor that has one."""
    # The final state of a sequence shorter than a filter is another graph.
    length = torch.export.Dim('length', min=4, max=512)
    names = {
        'pole_denominator': ('rho_mod', 'theta_mod'),
        'rms_norm_gated': ('x', 'z'),
    }
    along = STREAMS[op].data if op in STREAMS else names[op]
    last = op in STREAMS and STREAMS[op].axis == -1
    return {
        name: {tensor.ndim - 1 if last else 1: length}
        if name in along
        else None
        for name, tensor in tensors.items()
    }


def _of_length(op, length):
    case = basic(op)
    if op == 'rms_norm_gated':
        return resized(case, shape=(2, length, 12))
    return resized(case, length=length)


@pytest.mark.parametrize('op', ALONG_TIME)
@pytest.mark.parametrize('strict', [False, True])
def test_export_with_dynamic_length(op, strict, device, fresh_compiler):
    case = _of_length(op, 7)
    tensors = case.tensors(torch.float32, device)
    program = torch.export.export(
        Module(case),
        (tensors,),
        dynamic_shapes=(_dynamic(op, tensors),),
        strict=strict,
    )
    # Shorter, longer, and with more chunks than the example.
    for length in (4, 11, 70):
        tensors = _of_length(op, length).tensors(torch.float32, device)
        expected = case.call(tensors, None)
        actual = program.module()(tensors)
        for ours, eager in zip(actual, expected, strict=True):
            compare({'out': ours}, {'out': eager}, 'torch', torch.float32)
