"""The test that every Triton kernel passes for a device that is not here.

Each device has a test module of its own, so that processes can share the
work.
"""

from collections.abc import Callable

import pytest

from tests.test_kernels.compiler import compiler_obstacle

if obstacle := compiler_obstacle():
    pytest.skip(obstacle, allow_module_level=True)

from tests.test_kernels.aot import (
    TARGETS,
    case_modules,
    compile_case,
    enumerate_compiles,
)


def gate(name: str) -> Callable[..., None]:
    """Make the test of all kernels, cases and configurations.

    Args:
        name (str): Name of one of `TARGETS`.

    Returns:
        Callable: Parametrised test function.
    """
    (target,) = (target for target in TARGETS if target.name == name)
    parameters = [
        pytest.param(case, config, id=f'{op}-{label}'.replace(' ', '-'))
        for op in case_modules()
        for label, case, config in enumerate_compiles(op)
    ]

    @pytest.mark.parametrize(('case', 'config'), parameters)
    def test_kernel_fits_the_device(case, config):
        assert compile_case(case, config, target).problems == ()

    return test_kernel_fits_the_device
