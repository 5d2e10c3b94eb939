"""Time pole_scan against selective_scan and the loop that defines it.

One comparison per question: is the recursive filter cheaper than the selective
scan of the same size, both native (``of the same size``: the same channels and
tokens), and is the hand-written adjoint of the torch backend faster than
autograd through the reference loop?
"""

import argparse
import sys

import torch
from torch import Tensor

from mmssm.ops import pole_scan, selective_scan
from mmssm.ops.availability import native_obstacle
from mmssm.testing.benchmark import (
    benchmark_parser,
    format_table,
    inference,
    machine,
    measure,
    timing_rows,
    training_step,
)

PASSES = {'forward': inference, 'forward + backward': training_step}


def parse_args() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, repeats=11)
    parser.add_argument('--batch', type=int, default=8)
    parser.add_argument('--length', type=int, default=197)
    parser.add_argument('--channels', type=int, default=384)
    parser.add_argument('--groups', type=int, default=12)
    parser.add_argument('--order', type=int, default=5)
    parser.add_argument(
        '--state', type=int, default=16, help='of the selective scan'
    )
    return parser.parse_args()


def pole_inputs(args: argparse.Namespace, gated: bool) -> list[Tensor]:
    """Arguments of `pole_scan`; ``gated``: with skip and gate."""
    shape = (args.batch, args.length, args.channels)
    coefficients = (args.batch, args.length, args.groups, args.order)
    inputs = [torch.randn(shape), torch.randn(coefficients) * 0.1]
    if gated:
        inputs += [
            torch.randn(shape),
            torch.ones(args.channels),
            torch.randn(shape),
        ]
    return inputs


def selective_inputs(args: argparse.Namespace, gated: bool) -> list[Tensor]:
    """Arguments of `selective_scan` of the same size."""
    shape = (args.batch, args.channels, args.length)
    matrix = (args.batch, args.state, args.length)
    rates = torch.arange(1.0, args.state + 1)
    inputs = [
        torch.randn(shape),
        torch.rand(shape) * 0.1,
        -rates.repeat(args.channels, 1),
        torch.randn(matrix),
        torch.randn(matrix),
    ]
    if gated:
        inputs += [torch.ones(args.channels), torch.randn(shape)]
    return inputs


def compare_with_selective_scan(args: argparse.Namespace) -> None:
    header = ('native', 'wall ms', 'CPU ms', 'wall / pole', 'CPU / pole')
    for gated in (False, True):
        poles = pole_inputs(args, gated)
        selective = selective_inputs(args, gated)
        for title, make in PASSES.items():
            cases = {
                'pole_scan': make(pole_scan, poles, backend='native'),
                'selective_scan': make(
                    selective_scan, selective, backend='native'
                ),
            }
            rows = timing_rows(measure(cases, args.repeats), 'pole_scan')
            print(f'\n{title}{", with skip and gate" if gated else ""}\n')
            print(format_table(header, rows, args.markdown))


def compare_with_reference(args: argparse.Namespace) -> None:
    header = ('pole_scan', 'wall ms', 'CPU ms', 'wall / torch', 'CPU / torch')
    inputs = pole_inputs(args, gated=False)
    for title, make in PASSES.items():
        cases = {
            backend: make(pole_scan, inputs, backend=backend)
            for backend in ('torch', 'reference')
        }
        rows = timing_rows(measure(cases, args.repeats), 'torch')
        print(f'\n{title}\n')
        print(format_table(header, rows, args.markdown))


def main() -> int:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(
        f'pole_scan ({args.batch}, {args.length}, {args.channels}), order '
        f'{args.order}, {args.groups} groups; selective_scan with state '
        f'{args.state}; float32; {machine(args.threads)}'
    )
    compare_with_reference(args)
    if reason := native_obstacle():
        print(f'error: no native rows: {reason}', file=sys.stderr)
        return 1
    compare_with_selective_scan(args)
    return 0


if __name__ == '__main__':
    sys.exit(main())
