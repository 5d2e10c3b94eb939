"""Timing of operators against a peer, for ``tools/benchmarks``.

What is printed are ratios measured in one run. The cases take turns (peer,
ours, peer, ours, ...), so that whatever else the machine does slows all of
them alike, and each ratio is the median of the ratios of the rounds.
"""

import argparse
import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

# A sample is at least this long, or the clock and Python are what is timed.
_SAMPLE_SECONDS = 2e-3


@dataclasses.dataclass
class Timing:
    """Times of one case, one sample per round, in milliseconds per call.

    Attributes:
        wall (list[float]): Time on the clock.
        cpu (list[float]): Time of all threads, divided by their number. On a
            shared machine it depends less on what others run.
    """

    wall: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)

    def wall_over(self, other: 'Timing') -> float:
        """Median over the rounds of this wall time over the other's."""
        return _median_ratio(self.wall, other.wall)

    def cpu_over(self, other: 'Timing') -> float:
        """Median over the rounds of this CPU time over the other's."""
        return _median_ratio(self.cpu, other.cpu)


def measure(
    cases: dict[str, Callable[[], object]], repeats: int
) -> dict[str, Timing]:
    """Time cases in turns, after one warm-up call of each.

    Args:
        cases (dict[str, Callable]): Functions without arguments, by name.
        repeats (int): Number of rounds.

    Returns:
        dict[str, Timing]: By name.
    """
    calls = {name: _calls_per_sample(run) for name, run in cases.items()}
    timings = {name: Timing() for name in cases}
    for _ in range(repeats):
        for name, run in cases.items():
            wall, cpu = _sample(run, calls[name])
            timings[name].wall.append(wall)
            timings[name].cpu.append(cpu)
    return timings


def training_step(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    **options: object,
) -> Callable[[], object]:
    """Make a case of a forward and a backward pass.

    Args:
        function (Callable): Takes the inputs and returns one tensor.
        inputs (Sequence[Tensor]): All of them get a gradient.
        options: Further arguments of ``function``.

    Returns:
        Callable: Returns the gradients of all inputs.
    """
    inputs = [t.detach().requires_grad_() for t in inputs]
    with torch.no_grad():
        grad = torch.randn_like(function(*inputs, **options))

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*inputs, **options), inputs, grad)

    return run


def inference(
    function: Callable[..., object],
    inputs: Sequence[Tensor],
    **options: object,
) -> Callable[[], object]:
    """Make a case of a forward pass alone; see `training_step`."""

    def run() -> object:
        with torch.no_grad():
            return function(*inputs, **options)

    return run


def benchmark_parser(
    description: str, repeats: int = 20
) -> argparse.ArgumentParser:
    """Make a parser with the options that all benchmarks have.

    Args:
        description (str): What is measured.
        repeats (int): Default of ``--repeats``.

    Returns:
        ArgumentParser: To be extended by the script.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        '--threads', type=int, default=2, help='default: %(default)s'
    )
    parser.add_argument(
        '--repeats',
        type=int,
        default=repeats,
        help='rounds in which the cases take turns (default: %(default)s)',
    )
    parser.add_argument(
        '--markdown', action='store_true', help='print tables for the docs'
    )
    return parser


def machine(threads: int) -> str:
    """Say what the figures were measured on."""
    cores = f'{threads} thread{"s" if threads > 1 else ""}'
    return f'{_cpu_model()}, {cores}, torch {torch.__version__}'


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], markdown: bool
) -> str:
    """Lay out a table as plain text or markdown.

    Args:
        header (Sequence[str]): Names of the columns.
        rows (Sequence[Sequence]): Cells; floats get three digits.
        markdown (bool): Whether to write markdown.

    Returns:
        str: The lines of the table.
    """
    cells = [list(header), *([_cell(c) for c in row] for row in rows)]
    if markdown:
        cells.insert(1, ['---'] * len(header))
        return '\n'.join(f'| {" | ".join(row)} |' for row in cells)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return '\n'.join(
        '  '.join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(
                zip(row, widths, strict=True)
            )
        ).rstrip()
        for row in cells
    )


def timing_rows(
    timings: dict[str, Timing], base: str
) -> list[tuple[str, float, float, float, float]]:
    """Make rows of medians, and of ratios to one of the cases.

    Args:
        timings (dict[str, Timing]): As `measure` returns them.
        base (str): The case that the others are compared with.

    Returns:
        list[tuple]: Name, wall and CPU time in milliseconds, and the wall
        and CPU time over those of ``base``.
    """
    return [
        (
            name,
            statistics.median(timing.wall),
            statistics.median(timing.cpu),
            timing.wall_over(timings[base]),
            timing.cpu_over(timings[base]),
        )
        for name, timing in timings.items()
    ]


def _calls_per_sample(run: Callable[[], object]) -> int:
    run()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return max(1, round(_SAMPLE_SECONDS / max(seconds, 1e-7)))


def _sample(run: Callable[[], object], calls: int) -> tuple[float, float]:
    """Wall and CPU time per call, in milliseconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        run()
    wall = time.perf_counter() - wall
    cpu = (time.process_time() - cpu) / torch.get_num_threads()
    return wall / calls * 1e3, cpu / calls * 1e3


def _median_ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def _cell(value: object) -> str:
    return f'{value:.3g}' if isinstance(value, float) else str(value)


def _cpu_model() -> str:
    info = Path('/proc/cpuinfo')
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()
