"""The selective scan against numbers of the published reference code."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mmssm.ops import selective_scan

GOLDEN = Path(__file__).parents[2] / 'data' / 'golden' / 'vision'


def _check(name, backend, device):
    golden = {
        key: torch.from_numpy(value).to(device)
        for key, value in np.load(GOLDEN / f'{name}.npz').items()
        if key != 'meta'
    }
    leaves = {
        key.removeprefix('in/'): value.requires_grad_()
        for key, value in golden.items()
        if key.startswith('in/') and key != 'in/dout'
    }
    y = selective_scan(**leaves, delta_softplus=True, backend=backend)
    gradients = torch.autograd.grad(y, leaves.values(), golden['in/dout'])
    actual = {'out/y': y}
    for key, gradient in zip(leaves, gradients, strict=True):
        actual[f'grad/{key}'] = gradient
    assert actual.keys() == {k for k in golden if not k.startswith('in/')}
    for key, value in actual.items():
        error = (value - golden[key]).abs().max()
        assert error <= 2e-5 * golden[key].abs().max(), key


@pytest.mark.each_backend('selective_scan')
@pytest.mark.parametrize('name', ['open_scan', 'open_scan_grouped'])
def test_equals_published_numbers(op, backend, name, device):
    _check(name, backend, device)


@pytest.mark.parametrize('name', ['open_scan', 'open_scan_grouped'])
def test_definition_equals_published_numbers(name):
    _check(name, 'reference', 'cpu')
