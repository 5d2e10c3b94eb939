"""Arguments that no operator can work with are refused, and said why."""

import pytest
import torch

from mmssm import ops
from tests.test_ops.parity.cases import BACKENDS
from tests.test_ops.parity.test_properties import basic


@pytest.mark.parametrize('op', BACKENDS)
def test_tensors_are_on_one_device(op):
    case = basic(op)
    tensors = case.tensors(torch.float32)
    for name in list(tensors)[1:]:
        elsewhere = tensors | {name: tensors[name].to('meta')}
        with pytest.raises(ValueError, match='expected one device'):
            case.call(elsewhere, None)


@pytest.mark.parametrize('backend', [None, 'torch', 'native', 'reference'])
@pytest.mark.parametrize(
    ('heads', 'headdim', 'state'), [(0, 3, 4), (2, 0, 4), (2, 3, 0)]
)
def test_ssd_of_nothing(heads, headdim, state, backend):
    x = torch.randn(2, 5, heads, headdim, requires_grad=True)
    dt, A = torch.rand(2, 5, heads), -torch.ones(heads)
    B = torch.randn(2, 5, 1, state)
    y, final = ops.ssd_chunk_scan(
        x, dt, A, B, B, 4, return_final_states=True, backend=backend
    )
    y.sum().backward()
    assert y.shape == x.shape
    assert not y.any()
    assert final.shape == (2, heads, headdim, state)


def test_parameters_of_a_step_are_tensors():
    zeros = torch.zeros
    state, u, B = zeros(1, 4, 2), zeros(1, 4), zeros(1, 2)
    with pytest.raises(TypeError, match='`D` is a list'):
        ops.selective_scan_step(state, u, u, zeros(4, 2), B, B, D=[1.0])


@pytest.mark.parametrize('order', [16, 17, 32, 33])
def test_large_orders_are_served(order):
    eta, q = torch.randn(1, 9, 4), 0.01 * torch.randn(1, 9, 2, order)
    expected = ops.pole_scan(eta, q, backend='reference')
    assert torch.allclose(ops.pole_scan(eta, q), expected, atol=1e-5)
