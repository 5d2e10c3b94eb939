"""Long sequences, and recurrences that overflow."""

import functools

import pytest
import torch

from mmssm.ops import pole_scan, selective_scan, ssd_chunk_scan
from tests.test_ops.parity.case import Draw
from tests.test_ops.parity.cases import pole_scan as pole_cases

LENGTH = 16384


def selective_inputs(length):
    draw = Draw()
    shape = (1, 2, length)
    return functools.partial(selective_scan, delta_softplus=False), {
        'u': draw.normal(*shape),
        'delta': draw.uniform(0.01, 0.5, *shape),
        'A': -draw.uniform(0.2, 2, 2, 4),
        'B': draw.normal(1, 4, length),
        'C': draw.normal(1, 4, length),
        'D': draw.normal(2),
    }


def pole_inputs(length):
    # Poles of one group, in slow motion: their filter is well conditioned.
    draw = Draw()
    eta = draw.normal(1, length, 4)
    q = pole_cases.coefficients(draw, 1, 1, 2, 3).expand(-1, length, -1, -1)
    wave = torch.linspace(0, 20, length, dtype=torch.float64).cos()
    damping = (0.9 + 0.05 * wave)[None, :, None, None]
    powers = torch.arange(1, 4, dtype=torch.float64)
    return pole_scan, {'eta': eta, 'q': q * damping**powers}


def ssd_inputs(length):
    draw = Draw()
    return functools.partial(ssd_chunk_scan, chunk_size=64), {
        'x': draw.normal(1, length, 2, 3),
        'dt': draw.uniform(0.01, 0.5, 1, length, 2),
        'A': -draw.uniform(0.2, 2, 2),
        'B': draw.normal(1, length, 1, 4),
        'C': draw.normal(1, length, 1, 4),
    }


INPUTS = {
    'selective_scan': selective_inputs,
    'pole_scan': pole_inputs,
    'ssd_chunk_scan': ssd_inputs,
}


@functools.cache
def long_result(op):
    function, tensors = INPUTS[op](LENGTH)
    return function(**tensors, backend='reference')


@pytest.mark.each_backend(*INPUTS, interpreted=False)
def test_long_sequence_in_float32(op, backend, device):
    function, tensors = INPUTS[op](LENGTH)
    tensors = {n: t.to(device, torch.float32) for n, t in tensors.items()}
    exact = long_result(op)
    y = function(**tensors, backend=backend).to('cpu', torch.float64)
    assert (y - exact).abs().max() <= 1e-5 * exact.abs().max()


@pytest.mark.each_backend(*INPUTS, interpreted=False)
def test_gradients_of_a_long_sequence_in_float32(op, backend, device):
    function, tensors = INPUTS[op](2048)
    gradients = {}
    for dtype in (torch.float32, torch.float64):
        # In float64 each backend equals the definition; see test_parity.py.
        name = backend if dtype == torch.float32 else 'torch'
        leaves = {
            n: t.to(device, dtype).requires_grad_() for n, t in tensors.items()
        }
        y = function(**leaves, backend=name)
        weight = torch.linspace(-1, 1, 2048, dtype=dtype, device=device).cos()
        axis = 2 if op == 'selective_scan' else 1
        loss = (y.movedim(axis, -1) * weight).sum()
        gradients[dtype] = torch.autograd.grad(loss, leaves.values())
    for name, actual, exact in zip(
        tensors,
        gradients[torch.float32],
        gradients[torch.float64],
        strict=True,
    ):
        error = (actual.double() - exact).abs().max()
        assert error <= 2e-5 * exact.abs().max(), name


def divergent(pattern, length=90):
    """Inputs of a filter that grows fourfold per token or worse."""
    eta = torch.zeros(2, length, 4)
    order = {'steady': 1, 'alternating': 1, 'rotating': 2, 'late': 3}[pattern]
    q = torch.zeros(2, length, 2, order)
    # Of the first group of the first sequence only, from one token on.
    eta[0, 8, :2] = torch.tensor([1.0, -3.0])
    eta[1] = 0.5
    if pattern == 'steady':
        q[0, :, 0, 0] = -4
    elif pattern == 'alternating':
        q[0, :, 0, 0] = 4
    elif pattern == 'rotating':
        q[0, :, 0, 1] = 16
    else:
        q[0, 10:, 0, 2] = -64
    return eta, q


@pytest.mark.each_backend('pole_scan')
@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize(
    'pattern', ['steady', 'alternating', 'rotating', 'late']
)
def test_overflow_shows_where_it_happens(
    op, backend, pattern, reverse, device
):
    eta, q = divergent(pattern)
    if reverse:
        eta, q = eta.flip(1), q.flip(1)
    found = {}
    for name, where in (('reference', 'cpu'), (backend, device)):
        leaves = [t.to(where, copy=True).requires_grad_() for t in (eta, q)]
        y, history = pole_scan(
            *leaves, return_final_history=True, reverse=reverse, backend=name
        )
        gradients = torch.autograd.grad(y.sum(), leaves)
        found[name] = [t.detach().cpu() for t in (y, history, *gradients)]
    for actual, exact in zip(found[backend], found['reference'], strict=True):
        assert torch.equal(actual.isfinite(), exact.isfinite())
    y = found[backend][0]
    # The pattern does overflow, and no other group or sequence sees it.
    assert not y[0, 0 if reverse else -1, :2].isfinite().any()
    assert y[0, :, 2:].isfinite().all()
    assert y[1].isfinite().all()


@pytest.mark.each_backend('pole_scan')
def test_overflow_through_skip_and_gate(op, backend, device):
    eta, q = (t.to(device) for t in divergent('steady'))
    x = torch.ones_like(eta)
    D = torch.ones(4, device=device)
    out = pole_scan(eta, q, x, D, z=x, backend=backend)
    plain = pole_scan(eta, q, backend=backend)
    assert torch.equal(out.isfinite(), plain.isfinite())
    assert not out.isfinite().all()


@pytest.mark.each_backend('selective_scan')
@pytest.mark.parametrize('reverse', [False, True])
def test_growing_state_overflows_where_it_does(op, backend, reverse, device):
    # A positive rate: 4 per token, in one channel of one sequence.
    length = 80
    A = torch.full((4, 2), -1.0)
    A[1] = 1.3862943611198906
    delta = torch.ones(2, 4, length)
    u = torch.zeros(2, 4, length)
    u[0, 1, 70 if reverse else 5] = 1
    B = torch.ones(2, 2, length)
    found = {}
    for name, where in (('reference', 'cpu'), (backend, device)):
        tensors = [t.to(where) for t in (u, delta, A, B, B)]
        y, state = selective_scan(
            *tensors, return_last_state=True, reverse=reverse, backend=name
        )
        found[name] = (y.cpu(), state.cpu())
    for actual, exact in zip(found[backend], found['reference'], strict=True):
        assert torch.equal(actual.isfinite(), exact.isfinite())
    y = found[backend][0]
    assert not y[0, 1, 0 if reverse else -1].isfinite()
    assert y[1].isfinite().all()
    assert y[0, [0, 2, 3]].isfinite().all()
