"""Which backends a device has, and the tests that run over them."""

import pytest
import torch

from mmssm.ops.availability import native_obstacle, triton_obstacle
from tests.test_ops.parity.cases import BACKENDS, CASES

ALL = ('torch', 'native', 'triton')
ON_DEVICE = {'cpu': ('torch', 'native'), 'cuda': ('torch', 'triton')}


@pytest.fixture(scope='session')
def device(pytestconfig: pytest.Config) -> str:
    """Type of the device under test."""
    # The tolerances of float32 are those of IEEE products.
    torch.backends.cuda.matmul.allow_tf32 = False
    return pytestconfig.getoption('device')


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    device = metafunc.config.getoption('device')
    if 'case' in metafunc.fixturenames:
        metafunc.parametrize(
            ('case', 'backend', 'dtype'),
            [
                _parameters(case, backend, getattr(torch, dtype))
                for case in CASES
                for backend in _backends(case.op, device)
                for dtype in case.runs_in
                if _fits(case, backend, dtype, device)
            ],
        )
    marker = metafunc.definition.get_closest_marker('each_backend')
    if marker:
        ops = marker.args or tuple(BACKENDS)
        metafunc.parametrize(
            ('op', 'backend'),
            [
                _parameters(op, backend)
                for op in ops
                for backend in _backends(op, device)
                if backend in marker.kwargs.get('backends', ALL)
                and (
                    marker.kwargs.get('interpreted', True)
                    or not _interpreted(backend, device)
                )
            ],
        )


def _backends(op: str, device: str) -> tuple[str, ...]:
    # An interpreted run is for the kernels that only it can run.
    if device == 'cpu' and triton_obstacle('cpu') is None:
        usable = ('triton',)
    else:
        usable = ON_DEVICE[device]
    return tuple(name for name in BACKENDS[op] if name in usable)


def _interpreted(backend: str, device: str) -> bool:
    return backend == 'triton' and device == 'cpu'


def _fits(case, backend: str, dtype: str, device: str) -> bool:
    if backend == 'triton' and dtype == 'float64':
        return False
    if _interpreted(backend, device):
        return case.interpreted
    return device != 'cpu' or not case.large


def _parameters(first, backend: str, *others):
    marks = []
    if backend == 'native' and native_obstacle():
        marks = [pytest.mark.skip(reason=native_obstacle())]
    names = [str(first), backend]
    names += [str(other).removeprefix('torch.') for other in others]
    return pytest.param(
        first, backend, *others, marks=marks, id='-'.join(names)
    )
