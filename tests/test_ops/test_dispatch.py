"""Choice of the backend, and what the operators share."""

import doctest
import importlib
import warnings

import pytest
import torch

from mmssm import ops
from mmssm.ops import availability, dispatch
from mmssm.ops.availability import native_obstacle, triton_obstacle
from mmssm.ops.dispatch import choose_backend
from tests.test_ops.parity.cases import BACKENDS, FORWARD_ONLY
from tests.test_ops.parity.run import leaves_of
from tests.test_ops.parity.test_properties import basic

ALL = ('reference', 'torch', 'native', 'triton')
FOLDERS = (
    'causal_conv1d',
    'cayley_rotate',
    'modal_scan',
    'pole_denominator',
    'pole_scan',
    'rms_norm_gated',
    'selective_scan',
    'ssd_chunk_scan',
)


@pytest.fixture
def machine(monkeypatch):
    """Pretend that kernels can or cannot run, with a reason."""

    def pretend(native=None, triton=None):
        monkeypatch.setattr(dispatch, 'native_obstacle', lambda: native)
        monkeypatch.setattr(
            dispatch, 'native_is_usable', lambda: native is None
        )
        monkeypatch.setattr(dispatch, 'triton_obstacle', lambda _: triton)
        monkeypatch.setattr(
            dispatch, 'triton_is_usable', lambda: triton is None
        )

    return pretend


class FakeTensor:
    """Device and dtype, which are all that the choice looks at."""

    def __init__(self, device, dtype=torch.float32):
        self.device = torch.device(device)
        self.dtype = dtype


def test_public_names():
    assert ops.__all__ == [
        'causal_conv1d',
        'causal_conv1d_step',
        'cayley_matrix',
        'cayley_rotate',
        'modal_scan',
        'modal_scan_step',
        'pole_denominator',
        'pole_scan',
        'pole_scan_step',
        'rms_norm_gated',
        'selective_scan',
        'selective_scan_step',
        'ssd_chunk_scan',
        'ssd_step',
        'token_poles',
    ]
    for name in ops.__all__:
        assert 'Args:' in getattr(ops, name).__doc__


@pytest.mark.parametrize('op', FOLDERS)
def test_examples_in_docstrings(op):
    module = importlib.import_module(f'mmssm.ops.{op}.interface')
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_compiles_without_graph_break():
    def fn(x, dt, A, B, U):
        y, state = ops.ssd_chunk_scan(
            x, dt, A, B, B, chunk_size=4, return_final_states=True
        )
        state = ops.cayley_rotate(state, U, U.flip(-1), dt[:, 0, :, None])
        z = ops.causal_conv1d(x[:, :, 0].mT, B[0, :3, 0].mT)
        return y.sum() + state.sum() + z.sum()

    torch.manual_seed(0)
    shapes = ((2, 9, 4, 3), (2, 9, 4), (4,), (2, 9, 1, 3), (2, 4, 3, 1))
    leaves = [torch.rand(shape, requires_grad=True) for shape in shapes]
    compiled = torch.compile(fn, fullgraph=True, backend='eager')
    expected = torch.autograd.grad(fn(*leaves), leaves)
    actual = torch.autograd.grad(compiled(*leaves), leaves)
    for ours, eager in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize(
    ('device', 'dtype', 'available', 'expected'),
    [
        ('cpu', torch.float32, ALL, 'native'),
        ('cpu', torch.float64, ALL, 'native'),
        ('cpu', torch.bfloat16, ALL, 'native'),
        ('cpu', torch.float32, ('reference', 'torch', 'triton'), 'torch'),
        ('cpu', torch.float32, ('reference', 'torch'), 'torch'),
        ('cuda', torch.float32, ALL, 'triton'),
        ('cuda', torch.bfloat16, ALL, 'triton'),
        ('cuda', torch.float64, ALL, 'torch'),
        ('cuda', torch.float32, ('reference', 'torch', 'native'), 'torch'),
        ('meta', torch.float32, ALL, 'torch'),
    ],
    ids=str,
)
def test_none_picks_by_device(machine, device, dtype, available, expected):
    machine()
    tensor = FakeTensor(device, dtype)
    assert choose_backend('op', None, tensor, available) == expected


def test_none_picks_torch_where_kernels_cannot_run(machine):
    machine(native='no compiler', triton='not installed')
    for device in ('cpu', 'cuda'):
        picked = choose_backend('op', None, FakeTensor(device), ALL)
        assert picked == 'torch'


@pytest.mark.parametrize('backend', ALL)
def test_request_is_honoured(machine, backend):
    machine()
    tensor = FakeTensor('cpu')
    assert choose_backend('op', backend, tensor, ALL) == backend


def test_unknown_backend():
    with pytest.raises(ValueError, match="`backend` is 'cuda'; expected None"):
        choose_backend('op', 'cuda', FakeTensor('cpu'), ALL)


@pytest.mark.parametrize(
    ('backend', 'device', 'dtype', 'reason'),
    [
        ('native', 'cpu', torch.float32, 'no compiler'),
        ('native', 'cuda', torch.float32, 'it needs .* on the CPU .* on cuda'),
        ('triton', 'cpu', torch.float32, 'not here'),
        ('triton', 'cuda', torch.float64, 'Triton .* this is float64'),
    ],
)
def test_request_that_cannot_be_met(machine, backend, device, dtype, reason):
    machine(native='no compiler', triton='not here')
    tensor = FakeTensor(device, dtype)
    message = (
        f"op cannot run on backend='{backend}': {reason}; use backend=None"
    )
    with pytest.raises(RuntimeError, match=message):
        choose_backend('op', backend, tensor, ALL)


def test_missing_library_is_named_once(monkeypatch):
    library = importlib.import_module('mmssm.kernels.cpu.library')
    monkeypatch.setattr(library, 'unavailable_reason', lambda: 'not built')
    availability._warn_once.cache_clear()
    case = basic('selective_scan')
    tensors = case.tensors(torch.float32)
    with pytest.warns(UserWarning, match='slower torch .* not built'):
        y, _ = case.call(tensors, None)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        again, _ = case.call(tensors, None)
    availability._warn_once.cache_clear()
    expected, _ = case.call(tensors, 'torch')
    assert torch.equal(y, expected)
    assert torch.equal(again, expected)
    with pytest.raises(RuntimeError, match='selective_scan .* not built'):
        case.call(tensors, 'native')


# Operators that end up in another one.
CALLS = {
    'selective_scan_step': 'selective_scan',
    'pole_scan_step': 'pole_scan',
}


@pytest.mark.parametrize('op', BACKENDS)
def test_backend_that_an_operator_has_not(op):
    tensors = basic(op).tensors(torch.float32)
    available = (*BACKENDS[op], *FORWARD_ONLY.get(op, ()))
    for backend in {'native', 'triton'} - set(available):
        message = f"has no {backend} kernel; use backend=None.*'torch'"
        with pytest.raises(RuntimeError, match=message):
            basic(op).call(tensors, backend)
    with pytest.raises(ValueError, match="`backend` is 'fast'"):
        basic(op).call(tensors, 'fast')


@pytest.mark.parametrize(
    'op', [op for op, backends in BACKENDS.items() if 'triton' in backends]
)
def test_triton_needs_a_gpu(op):
    # In this process nothing interprets kernels.
    reason = triton_obstacle('cpu')
    assert reason
    tensors = basic(op).tensors(torch.float32)
    message = f"{CALLS.get(op, op)} cannot run on backend='triton': it needs"
    if 'installed' in reason:
        message = message.removesuffix('it needs') + 'triton is not installed'
    with pytest.raises(RuntimeError, match=message):
        basic(op).call(tensors, 'triton')


@pytest.mark.skipif(
    native_obstacle() is not None, reason=str(native_obstacle())
)
@pytest.mark.parametrize(
    'op', [op for op, backends in BACKENDS.items() if 'native' in backends]
)
def test_none_is_native_on_a_cpu(op):
    leaves = leaves_of(basic(op).tensors(torch.float32))
    for ours, native in zip(
        basic(op).call(leaves, None),
        basic(op).call(leaves, 'native'),
        strict=True,
    ):
        assert torch.equal(ours, native)
