"""Choice of the backend, and what the operators share."""

import doctest
import importlib

import pytest
import torch

from mmssm import ops
from mmssm.ops.dispatch import choose_backend

CPU = torch.device('cpu')


def test_public_names():
    assert ops.__all__ == [
        'causal_conv1d',
        'causal_conv1d_step',
        'cayley_matrix',
        'cayley_rotate',
        'ssd_chunk_scan',
        'ssd_step',
    ]
    for name in ops.__all__:
        assert 'Args:' in getattr(ops, name).__doc__


@pytest.mark.parametrize(
    'op', ['ssd_chunk_scan', 'causal_conv1d', 'cayley_rotate']
)
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
        assert torch.equal(ours, eager)


def test_none_picks_torch():
    assert choose_backend('op', None, CPU, ('reference', 'torch')) == 'torch'


@pytest.mark.parametrize('backend', ['reference', 'torch'])
def test_request_is_honoured(backend):
    available = ('reference', 'torch')
    assert choose_backend('op', backend, CPU, available) == backend


def test_unknown_backend():
    with pytest.raises(ValueError, match="`backend` is 'cuda'; expected None"):
        choose_backend('op', 'cuda', CPU, ('reference', 'torch'))


@pytest.mark.parametrize('backend', ['native', 'triton'])
@pytest.mark.parametrize(
    'op', ['ssd_chunk_scan', 'ssd_step', 'causal_conv1d', 'cayley_rotate']
)
def test_missing_backend_says_what_to_use(op, backend):
    state = torch.zeros(1, 2, 3, 4)
    frame = torch.zeros(1, 2, 3), torch.zeros(1, 2), torch.zeros(2)
    B = torch.zeros(1, 1, 4)
    planes = torch.zeros(1, 2, 4, 1), torch.zeros(1, 2, 4, 1)
    calls = {
        'ssd_chunk_scan': lambda: ops.ssd_chunk_scan(
            frame[0][:, None],
            frame[1][:, None],
            frame[2],
            B[:, None],
            B[:, None],
            chunk_size=4,
            backend=backend,
        ),
        'ssd_step': lambda: ops.ssd_step(state, *frame, B, B, backend=backend),
        'causal_conv1d': lambda: ops.causal_conv1d(
            frame[0], torch.zeros(2, 4), backend=backend
        ),
        'cayley_rotate': lambda: ops.cayley_rotate(
            state, *planes, torch.zeros(1, 2, 1), backend=backend
        ),
    }
    message = f"no {backend} kernel for {op} .* use backend=None.*'torch'"
    with pytest.raises(RuntimeError, match=message):
        calls[op]()
