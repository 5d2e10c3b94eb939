"""Time and memory of the scans over the length of the sequence, on the CPU.

A scan is linear when the time per token and the memory per token do not grow.
One forward and one backward pass each. Memory is the peak of the process over
what it held before (Linux only); the gradients of the inputs are part of it.
"""

import argparse
import ctypes
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from mmssm.ops import pole_scan, selective_scan, ssd_chunk_scan
from mmssm.testing.benchmark import (
    benchmark_parser,
    format_table,
    machine,
    measure,
    training_step,
)

HEADER = ('length', 'wall ms', 'CPU ms', 'CPU us / token', 'KiB / token')
STATUS = Path('/proc/self/status')


def parse_args() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, repeats=5)
    parser.add_argument('--dim', type=int, default=384)
    parser.add_argument('--shortest', type=int, default=64)
    parser.add_argument('--longest', type=int, default=16384)
    parser.add_argument('--backend', help='default: what None picks')
    return parser.parse_args()


def selective_scan_case(
    dim: int, length: int, backend: str | None
) -> Callable[[], object]:
    state = 16
    inputs = [
        torch.randn(1, dim, length),
        torch.rand(1, dim, length) * 0.1,
        -torch.arange(1.0, state + 1).repeat(dim, 1),
        torch.randn(1, state, length),
        torch.randn(1, state, length),
    ]
    return training_step(selective_scan, inputs, backend=backend)


def pole_scan_case(
    dim: int, length: int, backend: str | None
) -> Callable[[], object]:
    groups, order = dim // 32, 5
    inputs = [
        torch.randn(1, length, dim),
        torch.randn(1, length, groups, order) * 0.1,
    ]
    return training_step(pole_scan, inputs, backend=backend)


def ssd_chunk_scan_case(
    dim: int, length: int, backend: str | None
) -> Callable[[], object]:
    heads, headdim, state = dim // 32, 32, 16
    inputs = [
        torch.randn(1, length, heads, headdim),
        torch.rand(1, length, heads) * 0.1,
        -torch.ones(heads),
        torch.randn(1, length, 1, state),
        torch.randn(1, length, 1, state),
    ]
    return training_step(
        ssd_chunk_scan, inputs, chunk_size=64, backend=backend
    )


CASES = {
    'selective_scan, state 16': selective_scan_case,
    'pole_scan, order 5': pole_scan_case,
    'ssd_chunk_scan, state 16, chunks of 64': ssd_chunk_scan_case,
}


def peak_memory(run: Callable[[], object]) -> int | None:
    """Most memory held during a call over that held before, in bytes."""
    if not STATUS.is_file():
        return None
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is not held
    Path('/proc/self/clear_refs').write_text('5')  # resets the peak
    before = _memory('VmRSS')
    run()
    return _memory('VmHWM') - before


def _memory(field: str) -> int:
    match = re.search(rf'{field}:\s+(\d+) kB', STATUS.read_text())
    return int(match[1]) * 1024


def main() -> int:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(
        f'batch 1, {args.dim} channels, float32, forward + backward; '
        f'{machine(args.threads)}'
    )
    lengths = [args.shortest]
    while lengths[-1] * 2 <= args.longest:
        lengths.append(lengths[-1] * 2)
    for title, make in CASES.items():
        cases = {n: make(args.dim, n, args.backend) for n in lengths}
        timings = measure(cases, args.repeats)
        rows = []
        for n, timing in timings.items():
            wall = statistics.median(timing.wall)
            cpu = statistics.median(timing.cpu)
            peak = peak_memory(cases[n])
            kib = 'unknown' if peak is None else peak / n / 1024
            rows.append((n, wall, cpu, cpu / n * 1e3, kib))
        print(f'\n{title}\n')
        print(format_table(HEADER, rows, args.markdown))
    return 0


if __name__ == '__main__':
    sys.exit(main())
