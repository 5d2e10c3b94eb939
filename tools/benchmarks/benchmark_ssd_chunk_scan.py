"""Time ssd_chunk_scan against the torch path of transformers' Mamba2.

The peer is what Mamba2Mixer of transformers runs for the scan where no CUDA
kernels are installed: in version 5 the function ``mamba2_chunk_scan``, in
version 4 lines of ``Mamba2Mixer.torch_forward``, which are run inside a mixer
whose projections, convolution, activation and norm hand their input on. It is
the same operator: step size with bias and softplus, scan, skip D. Both get
the same tensors.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mmssm.ops import ssd_chunk_scan
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

PEER = 'transformers.models.mamba2.modeling_mamba2'
HEADER = ('', 'wall ms', 'CPU ms', 'wall / mmssm', 'CPU / mmssm')


def parse_args() -> argparse.Namespace:
    parser = benchmark_parser(__doc__)
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--length', type=int, default=128)
    parser.add_argument('--heads', type=int, default=24)
    parser.add_argument('--headdim', type=int, default=64)
    parser.add_argument('--state', type=int, default=64)
    parser.add_argument('--chunk-size', type=int, default=64)
    parser.add_argument(
        '--groups', type=int, help='default: one per head, as SurgicalMamba'
    )
    return parser.parse_args()


def make_inputs(args: argparse.Namespace) -> list[Tensor]:
    """x, dt, A, B, C, D and dt_bias."""
    frames = (args.batch, args.length)
    matrix = (*frames, args.groups or args.heads, args.state)
    return [
        torch.randn(*frames, args.heads, args.headdim),
        torch.randn(*frames, args.heads),
        -torch.arange(1.0, args.heads + 1),
        torch.randn(matrix),
        torch.randn(matrix),
        torch.ones(args.heads),
        torch.full((args.heads,), -3.0),
    ]


def as_scan(function: Callable, **options: object) -> Callable[..., Tensor]:
    """Give ours and theirs one signature: the tensors of `make_inputs`."""

    def scan(*tensors: Tensor) -> Tensor:
        x, dt, A, B, C, D, dt_bias = tensors
        return function(
            x, dt, A, B, C, D=D, dt_bias=dt_bias, dt_softplus=True, **options
        )

    return scan


def peer_scan(
    peer: ModuleType, args: argparse.Namespace
) -> Callable[..., Tensor]:
    """Return the scan of transformers, of whichever version is installed."""
    if hasattr(peer, 'mamba2_chunk_scan'):
        return as_scan(peer.mamba2_chunk_scan, chunk_size=args.chunk_size)
    mixer = bare_mixer(peer, args)

    def scan(*tensors: Tensor) -> Tensor:
        x, dt, A, B, C, D, dt_bias = tensors
        # Gate (not used), x, B, C and dt as the input projection gives them.
        parts = (torch.zeros_like(x), x, B, C, dt.unsqueeze(-1))
        projected = torch.cat([part.flatten(2) for part in parts], dim=-1)
        parameters = {'A_log': (-A).log(), 'D': D, 'dt_bias': dt_bias}
        y = functional_call(mixer, parameters, (projected,))
        return y.unflatten(-1, x.shape[2:])

    return scan


def bare_mixer(peer: ModuleType, args: argparse.Namespace) -> nn.Module:
    """Make a Mamba2Mixer of which only the scan is left."""
    config = peer.Mamba2Config(
        num_heads=args.heads,
        head_dim=args.headdim,
        state_size=args.state,
        n_groups=args.groups or args.heads,
        chunk_size=args.chunk_size,
        expand=1,
        hidden_size=args.heads * args.headdim,
    )
    mixer = peer.Mamba2Mixer(config, layer_idx=0)
    mixer.in_proj = mixer.conv1d = mixer.act = nn.Identity()
    mixer.norm, mixer.out_proj = FirstOf(), nn.Identity()
    mixer.forward = mixer.torch_forward
    return mixer


class FirstOf(nn.Module):
    """Hand on the first argument."""

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        return first


def main() -> int:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    inputs = make_inputs(args)
    scans = {'mmssm': as_scan(ssd_chunk_scan, chunk_size=args.chunk_size)}
    missing = None
    try:
        peer = require(PEER, 'bench', 'the comparison with transformers')
    except ImportError as error:
        missing = error
    else:
        theirs = peer_scan(peer, args)
        error = relative_rms_error(theirs(*inputs), scans['mmssm'](*inputs))
        if not error < 1e-4:
            raise RuntimeError(
                f'transformers gives other numbers (error {error:.1e})'
            )
        scans[f'transformers {version("transformers")}'] = theirs
    print(
        f'ssd_chunk_scan {tuple(inputs[0].shape)}, state {args.state}, '
        f'{args.groups or args.heads} groups, chunks of {args.chunk_size}, '
        f'float32; {machine(args.threads)}'
    )
    for title, make in (
        ('forward', inference),
        ('forward + backward', training_step),
    ):
        cases = {name: make(scan, inputs) for name, scan in scans.items()}
        rows = timing_rows(measure(cases, args.repeats), 'mmssm')
        print(f'\n{title}\n')
        print(format_table(HEADER, rows, args.markdown))
    if missing is not None:
        print(f'error: {missing}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
