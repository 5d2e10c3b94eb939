"""Time the small operators against plain torch, on the CPU.

The sizes are those of the models: Vim-Tiny with 8 images for the convolution
and the poles, SurgicalMamba with one stream for the others. Each table says
how many times longer the other rows take than the first one, which is what a
call with backend=None runs.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmssm.ops import (
    causal_conv1d,
    cayley_rotate,
    pole_denominator,
    rms_norm_gated,
    ssd_step,
)
from mmssm.testing.benchmark import (
    benchmark_parser,
    format_table,
    inference,
    machine,
    measure,
    timing_rows,
    training_step,
)

HEADER = ('', 'wall ms', 'CPU ms', 'wall / ours', 'CPU / ours')


class Comparison(NamedTuple):
    """An operator and what it is compared with.

    Attributes:
        title (str): Operator and sizes.
        inputs (list[Tensor]): All of them get a gradient.
        functions (dict[str, Callable]): Functions of the inputs that give
            the same; ours first.
        trains (bool): Whether a backward pass is timed too.
    """

    title: str
    inputs: list[Tensor]
    functions: dict[str, Callable[..., Tensor]]
    trains: bool = True


def parse_args() -> argparse.Namespace:
    parser = benchmark_parser(__doc__)
    parser.add_argument('--only', choices=sorted(COMPARISONS))
    return parser.parse_args()


def compare_causal_conv1d() -> Comparison:
    def grouped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        history = weight.shape[1] - 1
        y = F.conv1d(F.pad(x, (history, 0)), weight[:, None], bias, groups=384)
        return F.silu(y)

    return Comparison(
        'causal_conv1d (8, 384, 197), width 4, silu',
        [torch.randn(8, 384, 197), torch.randn(384, 4), torch.randn(384)],
        {
            'ours': partial(causal_conv1d, activation='silu'),
            'torch backend': partial(
                causal_conv1d, activation='silu', backend='torch'
            ),
            'F.conv1d, F.silu': grouped,
        },
    )


def compare_pole_denominator() -> Comparison:
    groups = 12
    inputs = [
        torch.randn(groups, 2),
        torch.randn(groups, 2),
        torch.randn(groups, 1),
        torch.randn(groups, 1),
        torch.randn(8, 197, groups),
        torch.randn(8, 197, groups),
    ]
    return Comparison(
        'pole_denominator (8, 197, 12 groups), order 5',
        inputs,
        {
            'ours': pole_denominator,
            'torch backend': partial(pole_denominator, backend='torch'),
        },
    )


def compare_rms_norm_gated() -> Comparison:
    def norm(x: Tensor, weight: Tensor, z: Tensor) -> Tensor:
        return rms_norm_gated(x, weight, z=z)

    def written_out(x: Tensor, weight: Tensor, z: Tensor) -> Tensor:
        gated = x * F.silu(z)
        scale = torch.rsqrt(gated.square().mean(-1, keepdim=True) + 1e-5)
        return gated * scale * weight

    return Comparison(
        'rms_norm_gated (1, 128, 1536)',
        [
            torch.randn(1, 128, 1536),
            torch.ones(1536),
            torch.randn(1, 128, 1536),
        ],
        {'ours': norm, 'written out': written_out},
    )


def compare_cayley_rotate() -> Comparison:
    return Comparison(
        'cayley_rotate (1, 24 heads, 64), state 64, rank 16',
        [
            torch.randn(1, 24, 64, 64),
            F.normalize(torch.randn(1, 24, 64, 16), dim=-2),
            F.normalize(torch.randn(1, 24, 64, 16), dim=-2),
            torch.rand(1, 24, 16),
        ],
        {
            'ours': cayley_rotate,
            'dense solve': partial(cayley_rotate, backend='reference'),
        },
    )


def compare_ssd_step() -> Comparison:
    return Comparison(
        'ssd_step (1, 24 heads, 64), state 64',
        [
            torch.randn(1, 24, 64, 64),
            torch.randn(1, 24, 64),
            torch.rand(1, 24),
            -torch.ones(24),
            torch.randn(1, 24, 64),
            torch.randn(1, 24, 64),
            torch.ones(24),
        ],
        {
            'ours': lambda *tensors: ssd_step(*tensors)[0],
            'torch backend': lambda *tensors: ssd_step(
                *tensors, backend='torch'
            )[0],
        },
        trains=False,
    )


COMPARISONS = {
    'causal_conv1d': compare_causal_conv1d,
    'pole_denominator': compare_pole_denominator,
    'rms_norm_gated': compare_rms_norm_gated,
    'cayley_rotate': compare_cayley_rotate,
    'ssd_step': compare_ssd_step,
}


def main() -> int:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f'float32; {machine(args.threads)}')
    for name in [args.only] if args.only else COMPARISONS:
        title, inputs, functions, trains = COMPARISONS[name]()
        passes = {'forward': inference}
        if trains:
            passes['forward + backward'] = training_step
        for pass_name, make in passes.items():
            cases = {
                label: make(function, inputs)
                for label, function in functions.items()
            }
            rows = timing_rows(measure(cases, args.repeats), 'ours')
            print(f'\n{title}: {pass_name}\n')
            print(format_table(HEADER, rows, args.markdown))
    return 0


if __name__ == '__main__':
    sys.exit(main())
