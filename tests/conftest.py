"""Fixtures and rules of all tests."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from mmengine.registry import DefaultScope

from mmssm.compat import prepare_environment

# Before any test module imports a parent library: mmcv remembers at import
# which operators it found.
prepare_environment()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests that say so run on another device."""
    parser.addoption(
        '--device',
        choices=('cpu', 'cuda'),
        default='cpu',
        help='where tests/test_ops/parity runs (default: cpu)',
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks of single folders."""
    config.addinivalue_line(
        'markers',
        'each_backend(*ops, backends=ALL, interpreted=True): run for every '
        'backend of these operators (in tests/test_ops/parity)',
    )


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Seed every generator before each test."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_default_scope() -> Iterator[None]:
    """Keep the scope that a test's Runner sets from the tests after it."""
    with DefaultScope.overwrite_default_scope('mmssm'):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the GPU tests where there is no GPU."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason='needs a CUDA device; none was found')
    for item in items:
        if 'gpu' in item.keywords:
            item.add_marker(skip)
