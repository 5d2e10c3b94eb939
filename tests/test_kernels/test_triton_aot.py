"""The gate of the Triton kernels: no kernel escapes, none is let through."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_kernels.compiler import compiler_obstacle

if obstacle := compiler_obstacle():
    pytest.skip(obstacle, allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import JITFunction
from triton.runtime.jit import KernelInterface

import mmssm.kernels.triton
from tests.test_kernels.aot import (
    TARGETS,
    AOTCase,
    case_modules,
    compile_case,
    load_cases,
)


def _kernel_modules() -> Iterator[ModuleType]:
    package = mmssm.kernels.triton
    for module in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f'{package.__name__}.{module.name}')


def _jitted(kernel: KernelInterface) -> JITFunction:
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    return kernel


def test_no_kernel_escapes_the_gate():
    """A jitted function has a case, or another one calls it."""
    jitted, autotuned = {}, set()
    for module in _kernel_modules():
        for kernel in vars(module).values():
            if isinstance(kernel, KernelInterface):
                function = _jitted(kernel)
                jitted[function.fn.__module__, function.__name__] = function
                if kernel is not function:
                    autotuned.add(function)
    assert jitted
    covered = {
        case.function for op in case_modules() for case in load_cases(op)
    }
    source = '\n'.join(function.src for function in jitted.values())
    escaped = []
    for (module, name), function in jitted.items():
        calls = re.findall(rf'(?<!def )\b{name}\(', source)
        if function not in covered and (function in autotuned or not calls):
            escaped.append(f'{module}.{name}')
    assert escaped == []


def test_every_device_has_a_gate():
    prefix = Path(__file__).stem
    modules = Path(__file__).parent.glob(f'{prefix}_*.py')
    devices = {module.stem.removeprefix(f'{prefix}_') for module in modules}
    assert devices == {target.name for target in TARGETS}


@triton.jit
def _center_kernel(x, SIZE: tl.constexpr):
    values = tl.load(x + tl.arange(0, SIZE))
    tl.store(x + tl.arange(0, SIZE), values - tl.sum(values))


@triton.jit
def _square_kernel(x, SIZE: tl.constexpr):
    rows = tl.arange(0, SIZE)[:, None] * SIZE
    tile = x + rows + tl.arange(0, SIZE)[None, :]
    values = tl.load(tile)
    tl.store(tile, tl.dot(values, values).to(tl.bfloat16))


def _report(kernel, kind, size, target=TARGETS[0], **launch_options):
    case = AOTCase(
        name='too-large',
        kernel=kernel,
        types={'x': kind},
        constexprs={'SIZE': size},
        launch_options=launch_options,
    )
    return compile_case(case, case.configs[0], target)


def test_gate_passes_a_small_kernel():
    report = _report(_center_kernel, '*fp32', 1024)
    assert report.problems == ()
    assert 0 < report.registers <= 255


def test_gate_refuses_spills():
    report = _report(_center_kernel, '*fp32', 16384, num_warps=1)
    assert report.spills > 0
    assert report.problems == (f'spills {report.spills}',)


def test_gate_refuses_too_much_shared_memory():
    report = _report(_square_kernel, '*bf16', 256, TARGETS[-1], num_warps=8)
    assert any('shared memory' in problem for problem in report.problems)


def test_gate_refuses_an_incomplete_case():
    case = AOTCase('incomplete', _center_kernel, {'y': '*fp32'}, {})
    with pytest.raises(ValueError, match=r"missing \['SIZE', 'x'\].*\['y'\]"):
        compile_case(case, case.configs[0], TARGETS[0])
