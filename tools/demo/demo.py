"""Train, score and stream a small phase recognizer on sample videos.

Draws the videos, trains the visual backbone on shuffled frames and then the
recognizer on whole videos, scores it on unseen videos, streams one of them
frame by frame and checks that the stream gives the answers of the test. With
--compare it also trains the recognizer without carried state, for several
seeds, and prints how much memory is worth.
"""

import argparse
import csv
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from mmssm.datasets.cholec80 import CHOLEC80_PHASES
from mmssm.evaluation.functional import (
    StrictScores,
    VideoPredictions,
    read_predictions,
    score_videos,
    stack_predictions,
)

TOOLS = Path(__file__).resolve().parents[1]
CONFIGS = TOOLS.parent / 'configs' / 'surgical_mamba'
FRAMEWISE = CONFIGS / 'framewise_tiny_sample.py'
RECOGNIZER = CONFIGS / 'surgical-mamba_tiny_sample.py'
# The models of --compare and what each changes.
MODELS = {
    'SurgicalMamba': ('surgical_mamba', []),
    'without carried state': (
        'without_carry',
        ['model.temporal.carry_state=False'],
    ),
    'per-frame classifier': ('framewise', []),
}
# What clip mode and step mode may differ by in float32.
STREAM_TOLERANCE = 1e-4

console = Console(highlight=False, soft_wrap=True)


class Agreement(NamedTuple):
    """How a stream compares with the test of the same frames."""

    frames: int
    same_phase: int
    largest_difference: float

    @property
    def holds(self) -> bool:
        """Whether every phase is the same and the probabilities agree."""
        return (
            self.same_phase == self.frames
            and self.largest_difference <= STREAM_TOLERANCE
        )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/demo'),
        help='folder for everything that is written (default: %(default)s)',
    )
    parser.add_argument(
        '--seed',
        type=int,
        default=0,
        help='of the videos and of the training (default: %(default)s)',
    )
    parser.add_argument(
        '--compare',
        action='store_true',
        help='compare with models that have no memory, over --seeds',
    )
    parser.add_argument(
        '--seeds',
        type=int,
        nargs='+',
        default=[0, 1, 2],
        help='seeds of --compare (default: %(default)s)',
    )
    parser.add_argument(
        '--resume',
        action='store_true',
        help='go on where an earlier run stopped, instead of starting anew',
    )
    return parser.parse_args()


def run_tool(
    script: str,
    arguments: Sequence[str | Path],
    log: Path,
    show: str = '(.*)',
) -> None:
    """Run a script of tools/ in a process of its own, on one thread.

    Args:
        script (str): Path of the script below tools/.
        arguments (Sequence): Its arguments.
        log (Path): File for all that it prints.
        show (str): Regular expression; of every line that matches its groups
            are shown. Default: everything is shown.

    Raises:
        SystemExit: If the script fails.
    """
    command = [sys.executable, str(TOOLS / script), *map(str, arguments)]
    log.parent.mkdir(parents=True, exist_ok=True)
    # With more threads small models spend their time waiting for each other.
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONUNBUFFERED': '1'}
    with (
        log.open('w', encoding='utf-8') as file,
        subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
        ) as process,
    ):
        tail: list[str] = []
        for line in process.stdout:
            file.write(line)
            tail = [*tail[-24:], line]
            if match := re.search(show, line):
                console.print('  '.join(match.groups()))
    if process.returncode:
        sys.stdout.write(''.join(tail))
        raise SystemExit(
            f'error: tools/{script} failed with exit status '
            f'{process.returncode}; all it printed is in {log}'
        )


def make_videos(root: Path, seed: int) -> Path:
    """Draw the sample videos of a seed, unless they are there."""
    data = root / 'data'
    run_tool(
        'demo/make_sample_videos.py',
        ['--out', data, '--seed', str(seed)],
        root / 'logs' / 'make_sample_videos.log',
    )
    return data


def data_options(data: Path) -> list[str]:
    """Config options that point the data loaders to the videos."""
    return [
        f'{part}_dataloader.dataset.data_root={data}'
        for part in ('train', 'val', 'test')
    ]


def train(
    root: Path,
    name: str,
    config: Path,
    seed: int,
    options: Sequence[str],
    resume: bool,
) -> Path:
    """Train a config and return its last checkpoint."""
    work_dir = root / name
    if not resume:
        shutil.rmtree(work_dir, ignore_errors=True)
    run_tool(
        'train.py',
        [
            config,
            '--work-dir',
            work_dir,
            *(['--resume'] if resume else []),
            '--cfg-options',
            f'randomness.seed={seed}',
            # The demo tests in a step of its own.
            'train_cfg.val_interval=1000',
            *options,
        ],
        root / 'logs' / f'train_{name}.log',
        show=r'(Epoch)\(train\) +(\[.*?\]\[.*?\]).*(eta: \S+)'
        r'.* (loss: \S+).*(acc: \S+)',
    )
    return Path((work_dir / 'last_checkpoint').read_text().strip())


def train_recognizer(
    root: Path,
    data: Path,
    model: str,
    seed: int,
    start: Path,
    resume: bool,
) -> Path:
    """Train one of the recognizers from the backbone of ``start``."""
    name, changes = MODELS[model]
    options = [
        *data_options(data),
        f'model.backbone.init_cfg.checkpoint={start}',
        *changes,
    ]
    return train(root, name, RECOGNIZER, seed, options, resume)


def score(
    root: Path, name: str, config: Path, checkpoint: Path, data: Path
) -> StrictScores:
    """Test a checkpoint on the unseen videos and score the files it wrote."""
    out = root / 'predictions' / name
    shutil.rmtree(out, ignore_errors=True)
    run_tool(
        'test.py',
        [
            config,
            checkpoint,
            '--work-dir',
            root / name / 'test',
            '--out',
            out,
            '--cfg-options',
            *data_options(data),
            *(c for n, c in MODELS.values() if n == name for c in c),
        ],
        root / 'logs' / f'test_{name}.log',
        show=r'(predictions of .* written to .*)',
    )
    videos = [read_video(path) for path in sorted(out.glob('*.jsonl'))]
    return score_videos(
        {v.video_id: (v.gt_phase, v.phase) for v in videos},
        num_classes=videos[0].probabilities.shape[1],
    )


def read_video(path: Path) -> VideoPredictions:
    """Read the predictions of one video as arrays."""
    return stack_predictions(read_predictions(path))


def compare_stream(streamed: Path, tested: Path) -> Agreement:
    """Compare the predictions of a stream with those of the test."""
    stream, test = read_video(streamed), read_video(tested)
    if not np.array_equal(stream.frame_idx, test.frame_idx):
        raise SystemExit(
            f'error: {streamed} has {len(stream.frame_idx)} frames and '
            f'{tested} has {len(test.frame_idx)}; expected the same ones'
        )
    return Agreement(
        frames=len(test.phase),
        same_phase=int((stream.phase == test.phase).sum()),
        largest_difference=float(
            np.abs(stream.probabilities - test.probabilities).max()
        ),
    )


def stream_one_video(
    root: Path, data: Path, checkpoint: Path
) -> tuple[Path, Path, Agreement]:
    """Stream a test video from its mp4 file and compare with the test."""
    video = min((data / 'videos').glob('*.mp4'))
    out = root / 'stream'
    run_tool(
        'stream.py',
        [
            video,
            '--config',
            RECOGNIZER,
            '--checkpoint',
            checkpoint,
            '--out-dir',
            out,
            '--gt',
            data / 'phase_annotations' / f'{video.stem}-phase.txt',
        ],
        root / 'logs' / 'stream.log',
    )
    predictions = out / f'{video.stem}.jsonl'
    tested = root / 'predictions' / 'surgical_mamba' / f'{video.stem}.jsonl'
    timeline = out / f'{video.stem}_timeline.png'
    return predictions, timeline, compare_stream(predictions, tested)


def child_seconds() -> float:
    """CPU time of the finished child processes, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def score_table(scores: StrictScores, classes: Sequence[str]) -> Table:
    """Lay out the scores per phase and their means."""
    table = Table(
        title=f'{len(scores.video_ids)} unseen videos at 1 fps, '
        f'{scores.options.describe()}; in percent',
        title_justify='left',
    )
    table.add_column('phase')
    for name in scores.means:
        table.add_column(name, justify='right')
    for i, phase in enumerate(classes):
        row = [f'{scores.per_phase[name][i]:.1f}' for name in scores.means]
        table.add_row(phase, *row)
    table.add_section()
    table.add_row(
        'mean', *(f'{value.mean:.1f}' for value in scores.means.values())
    )
    table.add_row(
        'accuracy',
        f'{scores.accuracy.mean:.1f} ± {scores.accuracy.std:.1f}',
    )
    return table


def run_demo(args: argparse.Namespace) -> None:
    root = args.out / f'seed{args.seed}'
    console.rule('1/5 Drawing sample videos', align='left')
    data = make_videos(root, args.seed)

    before = child_seconds()
    console.rule('2/5 Training the backbone on single frames', align='left')
    start = train(
        root,
        'framewise',
        FRAMEWISE,
        args.seed,
        data_options(data),
        args.resume,
    )
    console.rule('3/5 Training SurgicalMamba on whole videos', align='left')
    checkpoint = train_recognizer(
        root, data, 'SurgicalMamba', args.seed, start, args.resume
    )
    spent = child_seconds() - before

    console.rule('4/5 Testing on unseen videos', align='left')
    scores = score(root, 'surgical_mamba', RECOGNIZER, checkpoint, data)
    console.rule('5/5 Streaming a video frame by frame', align='left')
    predictions, timeline, agreement = stream_one_video(root, data, checkpoint)

    console.rule('Done', align='left')
    console.print(score_table(scores, CHOLEC80_PHASES))
    console.print(f'training:    {spent:.0f} CPU-seconds of one thread')
    console.print(f'checkpoint:  {checkpoint}')
    console.print(f'predictions: {predictions}')
    console.print(f'timeline:    {timeline}')
    console.print(
        f'stream = clip: {agreement.same_phase} of {agreement.frames} frames '
        'get the same phase, probabilities differ by at most '
        f'{agreement.largest_difference:.1e}'
    )
    if not agreement.holds:
        raise SystemExit(
            'error: the stream does not give the answers of the test '
            f'(every phase, probabilities within {STREAM_TOLERANCE})'
        )


def run_compare(args: argparse.Namespace) -> None:
    rows = []
    for seed in args.seeds:
        root = args.out / f'seed{seed}'
        console.rule(f'Seed {seed}', align='left')
        data = make_videos(root, seed)
        start = train(
            root,
            'framewise',
            FRAMEWISE,
            seed,
            data_options(data),
            args.resume,
        )
        for model, (name, _) in MODELS.items():
            before = child_seconds()
            console.print(f'[bold]{model}[/bold]')
            config, checkpoint = FRAMEWISE, start
            if name != 'framewise':
                config = RECOGNIZER
                checkpoint = train_recognizer(
                    root, data, model, seed, start, args.resume
                )
            scores = score(root, name, config, checkpoint, data)
            rows.append(
                dict(
                    seed=seed,
                    model=model,
                    accuracy=round(scores.accuracy.mean, 2),
                    jaccard=round(scores.means['jaccard'].mean, 2),
                    lowest_video=round(float(scores.video_accuracy.min()), 2),
                    cpu_seconds=round(child_seconds() - before),
                )
            )
            console.print(rows[-1])
    path = args.out / 'compare.csv'
    write_csv(path, rows)
    console.print(compare_table(rows))
    console.print(f'written to {path}')


def write_csv(path: Path, rows: list[dict]) -> None:
    partial = path.with_suffix('.partial')
    with partial.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    os.replace(partial, path)


def compare_table(rows: list[dict]) -> Table:
    """Lay out accuracy by model and seed."""
    seeds = sorted({row['seed'] for row in rows})
    table = Table(
        title='Strict video-wise accuracy on unseen sample videos, percent',
        title_justify='left',
    )
    table.add_column('model')
    for seed in seeds:
        table.add_column(f'seed {seed}', justify='right')
    table.add_column('mean', justify='right')
    for model in MODELS:
        values = [row['accuracy'] for row in rows if row['model'] == model]
        table.add_row(
            model, *(f'{v:.1f}' for v in values), f'{np.mean(values):.1f}'
        )
    return table


def main() -> None:
    args = parse_args()
    try:
        (run_compare if args.compare else run_demo)(args)
    except KeyboardInterrupt:
        raise SystemExit(
            '\ninterrupted; what is finished is kept, --resume goes on'
        ) from None


if __name__ == '__main__':
    main()
