"""Time the streaming step of a temporal model, on the CPU.

A frame cannot be faster than reading the weights it touches once, which is
what its time is compared with. The bound is measured in the same run: each of
these matrices is multiplied with a vector (gemv) and, as another way to read
it, summed; the faster of the two counts. An ordinary frame touches every
matrix except those of state regramming, which are read when a chunk ends;
their bytes are added in proportion, spread over the frames of a clip.

Two streams take turns, frame by frame: an early one, and a late one that has
seen ``--late`` frames before. So whatever else the machine does meets both
alike. Their mean times (chunk and clip ends included), the memory of the
process and the size of the state must not differ.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from mmssm.compat import prepare_environment
from mmssm.engine.launch import load_config
from mmssm.models.layers.ssd_path import SSDPath
from mmssm.models.layers.state_regramming import StateRegramming
from mmssm.models.temporal.base import BaseTemporalModel
from mmssm.registry import MODELS
from mmssm.testing.benchmark import (
    Timing,
    benchmark_parser,
    format_table,
    machine,
)

CONFIG = (
    'mmssm::surgical_mamba/'
    'surgical-mamba_convnext-tiny_1xb1-clip128-1fps-50e_cholec80-40-40.py'
)
HEADER = ('', 'wall ms', 'CPU ms', 'wall / weights', 'CPU / weights')


def parse_args() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, repeats=1000)
    parser.description = __doc__
    parser.add_argument(
        '--config', default=CONFIG, help='its `model.temporal` is timed'
    )
    parser.add_argument(
        '--early', type=int, default=100, help='frames before the early stream'
    )
    parser.add_argument(
        '--late', type=int, default=9000, help='frames before the late stream'
    )
    return parser.parse_args()


class Stream:
    """A stream of random frames through a temporal model."""

    def __init__(self, model: BaseTemporalModel, clip_len: int) -> None:
        self.model = model
        self.state = model.init_state(batch_size=1, clip_len=clip_len)
        self.frame = torch.randn(1, model.in_channels)

    def step(self) -> None:
        self.state = self.model.step(self.frame, self.state).state


def split_weights(
    model: nn.Module, clip_len: int
) -> tuple[list[Tensor], float]:
    """Matrices of an ordinary frame, and bytes per frame of the others."""
    regramming = [m for m in model.modules() if isinstance(m, StateRegramming)]
    rotating = {id(p) for module in regramming for p in module.parameters()}
    matrices = [
        p.detach()
        for p in model.parameters()
        if p.ndim == 2 and id(p) not in rotating
    ]
    # The open chunk is rotated when the next frame comes or the clip ends; the
    # fast path forgets at the end of the clip and skips that last rotation.
    extra = 0.0
    for name, path in model.named_modules():
        if isinstance(path, SSDPath) and path.regramming is not None:
            rotations = -(-clip_len // path.chunk_size)
            rotations -= name.endswith('fast')
            extra += rotations / clip_len * nbytes(path.regramming)
    return matrices, extra


def nbytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def weight_readers(
    matrices: list[Tensor],
) -> dict[str, Callable[[], object]]:
    """Ways to read every matrix once."""
    vectors = [torch.randn(matrix.shape[1]) for matrix in matrices]

    def gemv() -> None:
        for matrix, vector in zip(matrices, vectors, strict=True):
            torch.mv(matrix, vector)

    def total() -> None:
        for matrix in matrices:
            matrix.sum()

    return {'weights read by gemv': gemv, 'weights read by sum': total}


def resident_bytes() -> int | None:
    """Memory of the process; None where Linux does not say it."""
    status = Path('/proc/self/status')
    if not status.is_file():
        return None
    gc.collect()
    _, _, rest = status.read_text().partition('VmRSS:')
    return int(rest.split()[0]) * 1024


def take_turns(
    cases: dict[str, Callable[[], object]], rounds: int
) -> dict[str, Timing]:
    """Run every case once per round: a frame cannot be repeated."""
    timings = {name: Timing() for name in cases}
    threads = torch.get_num_threads()
    for _ in range(rounds):
        for name, run in cases.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            wall = time.perf_counter() - wall
            cpu = time.process_time() - cpu
            timings[name].wall.append(wall * 1e3)
            timings[name].cpu.append(cpu * 1e3 / threads)
    return timings


def report(timings: dict[str, Timing], scale: float, markdown: bool) -> None:
    """Print means; ``scale`` adds the weights of chunk ends to the bound."""
    means = {
        name: [statistics.fmean(timing.wall), statistics.fmean(timing.cpu)]
        for name, timing in timings.items()
    }
    for name, values in means.items():
        if name.startswith('weights'):
            means[name] = [value * scale for value in values]
    bounds = [
        min(means[name][i] for name in means if name.startswith('weights'))
        for i in range(2)
    ]
    rows = [
        (name, wall, cpu, wall / bounds[0], cpu / bounds[1])
        for name, (wall, cpu) in means.items()
    ]
    print(format_table(HEADER, rows, markdown))
    early, late = means['early frame'], means['late frame']
    print(
        f'\nlate over early frame: {late[0] / early[0]:.3f} wall, '
        f'{late[1] / early[1]:.3f} CPU'
    )


def main() -> int:
    args = parse_args()
    prepare_environment()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    cfg = load_config(args.config)
    model = MODELS.build(cfg.model.temporal).eval()
    clip_len = cfg.model.clip_len
    matrices, extra = split_weights(model, clip_len)
    ordinary = sum(m.numel() * m.element_size() for m in matrices)
    print(
        f'{type(model).__name__}, d_model {model.d_model}, clips of {clip_len}'
        f', batch 1, float32; {machine(args.threads)}'
    )
    print(
        f'weights of a frame: {ordinary / 1e6:.1f} MB, and {extra / 1e6:.1f} '
        'MB for its share of chunk ends\n'
    )
    with torch.inference_mode():
        early, late = (Stream(model, clip_len) for _ in range(2))
        for _ in range(args.early):
            early.step()
        start, size = resident_bytes(), late.state.nbytes()
        for _ in range(args.late):
            late.step()
        cases = {
            **weight_readers(matrices),
            'early frame': early.step,
            'late frame': late.step,
        }
        timings = take_turns(cases, args.repeats)
    report(timings, 1 + extra / ordinary, args.markdown)
    print(
        f'state: {size / 1e6:.2f} MB at the start, '
        f'{late.state.nbytes() / 1e6:.2f} MB after '
        f'{args.late + args.repeats} frames'
    )
    end = resident_bytes()
    if end is not None:
        print(
            f'process: {start / 1e6:.1f} MB after {args.early} frames, '
            f'{(end - start) / 1e6:+.1f} MB after all'
        )
    return 0


if __name__ == '__main__':
    sys.exit(main())
