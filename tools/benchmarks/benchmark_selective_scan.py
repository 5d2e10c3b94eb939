"""Time selective_scan against mambapy's parallel scan, on the CPU.

The peer is ``MambaBlock.selective_scan`` of mambapy 1.2.0 itself: it forms
deltaA and BX and calls its parallel scan. It gets the same numbers in its own
layout. ``exp alone`` is a lower bound: the time of evaluating the exponentials
that the recurrence needs (twice with a backward pass that stores no states),
in a buffer that stays in the cache.
"""

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from mmssm.ops import selective_scan
from mmssm.ops.availability import native_obstacle
from mmssm.testing import relative_rms_error
from mmssm.testing.benchmark import (
    benchmark_parser,
    format_table,
    inference,
    machine,
    measure,
    timing_rows,
    training_step,
)
from mmssm.utils.optional import require

# Numbers per thread whose exponentials are taken at once: 512 KiB in, 512 KiB
# out, which the L2 cache holds.
EXP_BLOCK = 1 << 17
HEADER = ('backend', 'wall ms', 'CPU ms', 'wall / native', 'CPU / native')


def parse_args() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, repeats=11)
    parser.add_argument('--batch', type=int, default=8)
    parser.add_argument('--dim', type=int, default=384)
    parser.add_argument('--length', type=int, default=197)
    parser.add_argument('--state', type=int, default=16)
    return parser.parse_args()


def make_inputs(batch: int, dim: int, length: int, state: int) -> list[Tensor]:
    """u, delta, A, B, C and D in the layout of `selective_scan`."""
    return [
        torch.randn(batch, dim, length),
        torch.rand(batch, dim, length) * 0.1,
        -torch.arange(1.0, state + 1).repeat(dim, 1),
        torch.randn(batch, state, length),
        torch.randn(batch, state, length),
        torch.ones(dim),
    ]


def mambapy_layout(inputs: list[Tensor]) -> list[Tensor]:
    """The same numbers, channels last, as mambapy wants them."""
    u, delta, A, B, C, D = inputs
    u, delta, B, C = (t.mT.contiguous() for t in (u, delta, B, C))
    return [u, delta, A, B, C, D]


def mambapy_scan(*inputs: Tensor) -> Tensor:
    """`MambaBlock.selective_scan`, which needs nothing of its block."""
    mamba = require('mambapy.mamba', 'bench', 'the comparison with mambapy')
    return mamba.MambaBlock.selective_scan(None, *inputs)


def exponentials(inputs: list[Tensor], times: int) -> Callable[[], None]:
    """Evaluate as many exponentials as the recurrence has decays."""
    count = times * inputs[0].numel() * inputs[2].shape[1]
    size = min(count, EXP_BLOCK * torch.get_num_threads())
    decay, result = -torch.rand(size), torch.empty(size)

    def run() -> None:
        for _ in range(-(-count // size)):
            torch.exp(decay, out=result)

    return run


def check_peer(inputs: list[Tensor]) -> None:
    """Fail unless the peer computes the same."""
    ours = selective_scan(*inputs, backend='torch')
    theirs = mambapy_scan(*mambapy_layout(inputs)).mT
    error = relative_rms_error(theirs, ours)
    if not error < 1e-4:
        raise RuntimeError(f'mambapy gives other numbers (error {error:.1e})')


def main() -> int:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    inputs = make_inputs(args.batch, args.dim, args.length, args.state)
    backends = ['reference', 'torch', 'native']
    missing = None
    if reason := native_obstacle():
        backends.remove('native')
        print(f'no native row: {reason}', file=sys.stderr)
    try:
        check_peer(inputs)
    except ImportError as error:
        missing = error
    print(
        f'selective_scan ({args.batch}, {args.dim}, {args.length}), state '
        f'{args.state}, float32; {machine(args.threads)}'
    )
    for title, make, exps in (
        ('forward', inference, 1),
        ('forward + backward', training_step, 2),
    ):
        cases = {
            name: make(selective_scan, inputs, backend=name)
            for name in backends
        }
        if missing is None:
            cases['mambapy'] = make(mambapy_scan, mambapy_layout(inputs))
        cases['exp alone'] = exponentials(inputs, exps)
        timings = measure(cases, args.repeats)
        rows = timing_rows(timings, base=backends[-1])
        print(f'\n{title}\n')
        print(format_table(HEADER, rows, args.markdown))
    if missing is not None:
        print(f'error: {missing}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
