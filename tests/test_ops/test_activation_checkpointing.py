"""Operators inside torch.utils.checkpoint."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mmssm.ops import causal_conv1d, modal_scan, pole_scan, selective_scan
from mmssm.ops.ssd_chunk_scan.autograd import ssd_chunk_scan_op


def call_selective_scan(x, backend):
    u, B = x.mT, x[..., :3].mT
    A = -torch.ones(6, 3)
    return selective_scan(u, u, A, B, B, delta_softplus=True, backend=backend)


def call_pole_scan(x, backend):
    q = 0.1 * x.reshape(2, 9, 3, 2)
    return pole_scan(x, q, z=x, backend=backend)


def call_modal_scan(x, backend):
    poles = 0.1 * x.reshape(2, 9, 3, 2)
    return modal_scan(
        x, poles, poles, poles, torch.ones(3, 6), z=x, backend=backend
    )


def call_causal_conv1d(x, backend):
    return causal_conv1d(x.mT, torch.ones(6, 4), backend=backend)


def call_ssd_chunk_scan(x, backend):
    heads, B = x.unflatten(-1, (2, 3)), x[..., None, :4]
    return ssd_chunk_scan_op(
        *(heads, x[..., :2], -torch.ones(2), B, B),
        *(None, heads, None, None, None, 4, True, backend),
    )[0]


@pytest.mark.parametrize(
    ('call', 'backend'),
    [
        (call_selective_scan, 'torch'),
        (call_selective_scan, None),
        (call_pole_scan, 'torch'),
        (call_pole_scan, None),
        (call_modal_scan, None),
        (call_causal_conv1d, 'torch'),
        (call_causal_conv1d, None),
        (call_ssd_chunk_scan, 'torch'),
    ],
)
def test_recomputed_gradient(call, backend):
    x = torch.randn(2, 9, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(call(x, backend).square().sum(), x)
    y = checkpoint(call, x, backend, use_reentrant=False)
    (found,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(found, expected)
