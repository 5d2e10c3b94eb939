"""Time TCP-Vim-T1 against Vim-T, on the CPU, and show where the time goes.

Both are whole backbones with the class token, of the same widths; what
differs is the operator. Recurrence: the scan alone, with skip and gate; with
coefficients: pole_denominator too, for TCP. Mixer: one layer with projections
and convolution.
"""

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from mmssm.models import TCPVim, Vim
from mmssm.ops import pole_denominator, pole_scan, selective_scan
from mmssm.testing.benchmark import (
    benchmark_parser,
    format_table,
    inference,
    machine,
    measure,
    training_step,
)

HEADER = (
    '',
    'Vim-T wall ms',
    'TCP-Vim-T1 wall ms',
    'Vim-T CPU ms',
    'TCP-Vim-T1 CPU ms',
    'speed-up, wall',
    'speed-up, CPU',
)
TIME_HEADER = ('operator', 'Vim-T ms', 'TCP-Vim-T1 ms')


def parse_args() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, repeats=9)
    parser.add_argument('--size', type=int, default=224, help='of the image')
    parser.add_argument('--batch', type=int, default=8)
    parser.add_argument('--backend', help='default: what None picks')
    return parser.parse_args()


def make_models(args: argparse.Namespace) -> dict[str, nn.Module]:
    """Make both backbones, in evaluation mode."""
    options = dict(backend=args.backend)
    vim = dict(type='SelectiveScanMixer', **options)
    return {
        'Vim-T': Vim(img_size=args.size, mixer=vim).eval(),
        'TCP-Vim-T1': TCPVim(img_size=args.size, mixer=options).eval(),
    }


def training(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """Make a case of a forward and a backward pass to all parameters."""
    parameters = list(model.parameters())

    def run() -> object:
        return torch.autograd.grad(model(images)[0].sum(), parameters)

    return run


def recurrences(
    args: argparse.Namespace, batch: int, tokens: int, coefficients: bool
) -> dict:
    """Make the operators of one direction of one layer.

    With ``coefficients`` TCP computes those of its filters too.
    """
    dim, state, groups, backend = 384, 16, 12, args.backend
    channels_last = (batch, tokens, dim)
    u, delta, z = (torch.randn(channels_last).mT for _ in range(3))
    A = -torch.arange(1.0, state + 1).repeat(dim, 1)
    B, C = (torch.randn(batch, tokens, state).mT for _ in range(2))
    D, bias = torch.ones(dim), torch.full((dim,), -4.0)
    pairs, reals = torch.zeros(groups, 2), torch.zeros(groups, 1)
    mods = [torch.randn(batch, tokens, 1) for _ in range(2)]
    eta, x, gate = (torch.randn(channels_last) for _ in range(3))

    def selective(*tensors: Tensor) -> Tensor:
        return selective_scan(*tensors, delta_softplus=True, backend=backend)

    def denominator(*mods: Tensor) -> Tensor:
        return pole_denominator(
            pairs, pairs, reals, reals, *mods, backend=backend
        )

    def scan(eta: Tensor, x: Tensor, gate: Tensor, q: Tensor) -> Tensor:
        return pole_scan(eta, q, x=x, D=D, z=gate, backend=backend)

    def both(eta: Tensor, x: Tensor, gate: Tensor, *mods: Tensor) -> Tensor:
        return scan(eta, x, gate, denominator(*mods))

    q = denominator(*mods)
    return {
        'Vim-T': (selective, [u, delta, A, B, C, D, z, bias]),
        'TCP-Vim-T1': (both, [eta, x, gate, *mods])
        if coefficients
        else (scan, [eta, x, gate, q]),
    }


def comparisons(
    args: argparse.Namespace, models: dict[str, nn.Module]
) -> dict[str, dict[str, Callable[[], object]]]:
    """Make what is compared: a case per model each."""
    found = {}
    tokens = (args.size // 16) ** 2 + 1
    for batch in dict.fromkeys((1, args.batch)):
        hidden = torch.randn(batch, tokens, 192)
        images = torch.randn(batch, 3, args.size, args.size)
        for title, coefficients in (
            ('recurrence', False),
            ('recurrence with coefficients', True),
        ):
            scans = recurrences(args, batch, tokens, coefficients)
            found[f'{title}, forward, batch {batch}'] = {
                name: inference(*scan) for name, scan in scans.items()
            }
            found[f'{title}, forward + backward, batch {batch}'] = {
                name: training_step(*scan) for name, scan in scans.items()
            }
        found[f'mixer, forward, batch {batch}'] = {
            name: inference(model.layers[0].mixer, [hidden])
            for name, model in models.items()
        }
        found[f'model, forward, batch {batch}'] = {
            name: inference(model, [images]) for name, model in models.items()
        }
        found[f'model, forward + backward, batch {batch}'] = {
            name: training(model, images) for name, model in models.items()
        }
    return found


def comparison_row(
    title: str, cases: dict[str, Callable[[], object]], repeats: int
) -> tuple:
    """Time one comparison."""
    vim, tcp = measure(cases, repeats).values()
    middle = len(vim.wall) // 2
    return (
        title,
        *(sorted(t.wall)[middle] for t in (vim, tcp)),
        *(sorted(t.cpu)[middle] for t in (vim, tcp)),
        vim.wall_over(tcp),
        vim.cpu_over(tcp),
    )


def time_by_operator(model: nn.Module, images: Tensor) -> dict[str, float]:
    """Self time of the operators in one forward pass, in milliseconds."""
    with torch.no_grad():
        model(images)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            model(images)
    return {
        event.key: event.self_cpu_time_total / 1e3
        for event in profiler.key_averages()
    }


def time_rows(
    models: dict[str, nn.Module], images: Tensor, top: int = 12
) -> list[tuple]:
    """Return the operators that take the most time in either model."""
    times = [time_by_operator(m, images) for m in models.values()]
    names = sorted(
        set().union(*times), key=lambda n: -max(t.get(n, 0.0) for t in times)
    )
    rows = [(n, *(t.get(n, 0.0) for t in times)) for n in names[:top]]
    return [*rows, ('all', *(sum(t.values()) for t in times))]


def main() -> int:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    models = make_models(args)
    print(f'{args.size} x {args.size}, float32; {machine(args.threads)}\n')
    rows = [
        comparison_row(title, cases, args.repeats)
        for title, cases in comparisons(args, models).items()
    ]
    print(format_table(HEADER, rows, args.markdown))
    print(f'\nSelf time in a forward pass, batch {args.batch}\n')
    images = torch.randn(args.batch, 3, args.size, args.size)
    print(format_table(TIME_HEADER, time_rows(models, images), args.markdown))
    return 0


if __name__ == '__main__':
    sys.exit(main())
