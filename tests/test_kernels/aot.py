"""Compile Triton kernels for devices that are not here, and judge them.

Run it on one operator to see registers, spills and shared memory of every
kernel, configuration and target::

    python -m tests.test_kernels.aot selective_scan [--target sm_90]
"""

import argparse
import contextlib
import importlib
import io
import itertools
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import Autotuner, JITFunction

from tests.test_kernels import aot_cases

# Triton describes an argument by its type alone; this mark says that the
# value is a multiple of 16, which the launcher finds out by itself.
_ALIGNED = ':16'
_DIVISIBILITY = [['tt.divisibility', 16]]


@dataclass(frozen=True)
class Target:
    """A device to compile for.

    Attributes:
        name (str): Architecture as the vendor writes it.
        gpu (GPUTarget): The same for Triton.
        shared_limit (int): Shared memory that one program may use, in bytes.
    """

    name: str
    gpu: GPUTarget
    shared_limit: int


TARGETS = (
    Target('sm_80', GPUTarget('cuda', 80, 32), 166_912),
    Target('sm_90', GPUTarget('cuda', 90, 32), 232_448),
    Target('sm_100', GPUTarget('cuda', 100, 32), 232_448),
    Target('gfx942', GPUTarget('hip', 'gfx942', 64), 65_536),
)
_TENSOR_MEMORY_LIMIT = 512


@dataclass(frozen=True)
class AOTCase:
    """One specialisation of one kernel.

    ``types`` and ``constexprs`` together name all arguments of the kernel
    but those set by a configuration.

    Attributes:
        name (str): What is special about the case; part of the test id.
        kernel (Any): The jitted or autotuned kernel.
        types (dict[str, str]): Types of run-time arguments, e.g.
            ``'*bf16'``, ``'*fp32'``, ``'i32'``, ``'fp32'``. Pointers count as
            aligned; an integer does with ``'i32:16'``.
        constexprs (dict[str, Any]): Values of the others. Absent tensors are
            None, and the launcher turns an integer of 1 into a constant too.
        launch_options (dict[str, int]): ``num_warps`` and ``num_stages`` of
            a kernel without autotuning. Default: Triton's.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constexprs: dict[str, Any]
    launch_options: dict[str, int] = field(default_factory=dict)

    @cached_property
    def function(self) -> JITFunction:
        """The jitted kernel below autotuning and heuristics."""
        function = self.kernel
        while not isinstance(function, JITFunction):
            function = function.fn
        return function

    @property
    def configs(self) -> list[triton.Config]:
        """All configurations that autotuning may choose in this case."""
        if not isinstance(self.kernel, Autotuner):
            return [triton.Config({}, **self.launch_options)]
        prune = self.kernel.early_config_prune
        if prune is None:
            return self.kernel.configs
        return prune(self.kernel.configs, {}, **self.constexprs)


@dataclass(frozen=True)
class Report:
    """What a compiled kernel needs of its device.

    Attributes:
        registers (int): Registers per thread.
        spills (int): Spilled bytes (NVIDIA) or registers (AMD) per thread.
        shared (int): Shared memory of one program, in bytes.
        problems (tuple[str, ...]): Why the kernel is refused; empty if it is
            not.
    """

    registers: int
    spills: int
    shared: int
    problems: tuple[str, ...]


def compile_case(
    case: AOTCase, config: triton.Config, target: Target
) -> Report:
    """Compile one case for one target and judge the result.

    Args:
        case (AOTCase): Kernel and specialisation.
        config (triton.Config): One of ``case.configs``.
        target (Target): One of `TARGETS`.

    Returns:
        Report: Resources, and what is wrong with them.

    Raises:
        ValueError: If the case does not name exactly the arguments that the
            configuration leaves open.
    """
    source, options = _source(case, config)
    kernel, log = _compile(source, options, target)
    if target.gpu.backend == 'cuda':
        registers, spills = _nvidia_registers(log)
    else:
        registers, spills = _amd_registers(kernel)
    shared = kernel.metadata.shared
    tensor_memory = getattr(kernel.metadata, 'tmem_size', None) or 0
    problems = []
    if spills:
        problems.append(f'spills {spills}')
    if shared > target.shared_limit:
        problems.append(f'shared memory {shared} > {target.shared_limit}')
    if tensor_memory > _TENSOR_MEMORY_LIMIT:
        problems.append(
            f'tensor memory {tensor_memory} > {_TENSOR_MEMORY_LIMIT}'
        )
    return Report(registers, spills, shared, tuple(problems))


def case_modules() -> list[str]:
    """Names of the operators that have cases, in alphabetical order."""
    return sorted(
        module.name for module in pkgutil.iter_modules(aot_cases.__path__)
    )


def load_cases(op: str) -> list[AOTCase]:
    """Read the cases of one operator.

    Args:
        op (str): Name of a module in ``aot_cases``.

    Returns:
        list[AOTCase]: Its cases.
    """
    return importlib.import_module(f'{aot_cases.__name__}.{op}').CASES


def enumerate_compiles(
    op: str,
) -> Iterator[tuple[str, AOTCase, triton.Config]]:
    """List everything that has to compile for one operator and device.

    Args:
        op (str): Name of a module in ``aot_cases``.

    Yields:
        tuple[str, AOTCase, triton.Config]: A readable name, and what
        `compile_case` takes.
    """
    for case in load_cases(op):
        for config in case.configs:
            words = case.function.__name__, case.name, _config_name(config)
            yield ' '.join(words), case, config


def _config_name(config: triton.Config) -> str:
    values = [f'{key}={value}' for key, value in config.kwargs.items()]
    values.append(f'warps={config.num_warps}')
    values.append(f'stages={config.num_stages}')
    return ','.join(values)


def _source(
    case: AOTCase, config: triton.Config
) -> tuple[ASTSource, dict[str, Any]]:
    names = case.function.arg_names
    options = config.all_kwargs()
    constexprs = dict(case.constexprs)
    for name in config.kwargs:
        if name in names:
            constexprs[name] = options.pop(name)
    given = [*case.types, *constexprs]
    if sorted(given) != sorted(names):
        raise ValueError(
            f'{case.function.__name__} [{case.name}]: the case does not fit '
            f'the arguments: missing {sorted(set(names) - set(given))}, '
            f'unknown {sorted(set(given) - set(names))}'
        )
    signature, attributes = {}, {}
    for position, name in enumerate(names):
        if name in constexprs:
            signature[name] = 'constexpr'
            continue
        kind = case.types[name]
        signature[name] = kind.removesuffix(_ALIGNED)
        if kind.startswith('*') or kind.endswith(_ALIGNED):
            attributes[(position,)] = _DIVISIBILITY
    source = ASTSource(
        case.function, signature, constexprs=constexprs, attrs=attributes
    )
    return source, options


def _compile(
    source: ASTSource, options: dict[str, Any], target: Target
) -> tuple[CompiledKernel, str]:
    """The kernel, and what the assembler of NVIDIA says about it."""
    log = io.StringIO()
    knobs = triton.knobs
    with (
        knobs.compilation.scope(),
        knobs.nvidia.scope(),
        contextlib.redirect_stdout(log),
    ):
        # A kernel from the cache comes without a log.
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        kernel = triton.compile(source, target=target.gpu, options=options)
    return kernel, log.getvalue()


def _nvidia_registers(log: str) -> tuple[int, int]:
    """Registers per thread and spilled bytes, as ptxas prints them."""
    registers = _numbers(r'Used (\d+) registers', log)
    stores = _numbers(r'(\d+) bytes spill stores', log)
    loads = _numbers(r'(\d+) bytes spill loads', log)
    return max(registers), sum(stores) + sum(loads)


def _amd_registers(kernel: CompiledKernel) -> tuple[int, int]:
    """Vector registers, and how many of them went to memory."""
    text = kernel.asm['amdgcn']
    registers = _numbers(r'\.vgpr_count:\s*(\d+)', text)
    spills = _numbers(r'\.vgpr_spill_count:\s*(\d+)', text)
    return max(registers), sum(spills)


def _numbers(pattern: str, text: str) -> list[int]:
    found = [int(number) for number in re.findall(pattern, text)]
    if not found:
        raise RuntimeError(f'{pattern!r} was not found in:\n{text[-2000:]}')
    return found


def main() -> None:
    """Print the table of one operator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('op', choices=case_modules())
    parser.add_argument(
        '--target', choices=[target.name for target in TARGETS]
    )
    args = parser.parse_args()
    print('registers  spills  shared  kernel')
    for (name, case, config), target in itertools.product(
        enumerate_compiles(args.op), TARGETS
    ):
        if args.target not in (None, target.name):
            continue
        report = compile_case(case, config, target)
        verdict = '; '.join(report.problems) or 'ok'
        print(
            f'{report.registers:9d}  {report.spills:6d}  '
            f'{report.shared:6d}  {name} {target.name}: {verdict}',
            flush=True,
        )


if __name__ == '__main__':
    main()
