"""Distil a Vim into a TCP-Vim on handwritten digits, on one CPU thread.

Trains a Vim as teacher, then students of a few epochs: a Vim, a TCP-Vim
alone, one that starts from the weights it shares with the teacher, and one
that also learns the teacher's features. Prints one table and checks what must
hold: the start from the teacher helps, the feature loss at weight 1 brings
the features nearer, and the teacher is untouched. With the default options
this takes about 15 CPU-minutes.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from rich.console import Console
from rich.table import Table
from torch import nn

from mmssm.compat import prepare_environment
from mmssm.engine import launch
from mmssm.models import FeatureDistiller
from mmssm.registry import MODELS
from mmssm.utils.conversion import load_weights
from mmssm.utils.flops import count_flops

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
VIM = CONFIGS / 'vim' / 'vim-tiny_digits.py'
TCP = CONFIGS / 'tcp_vim' / 'tcp-vim-tiny_digits.py'
DISTILL = CONFIGS / 'tcp_vim' / 'tcp-vim-tiny_digits_distill.py'
WARMUP = 0.05  # of all epochs, as in the configs
IMAGE = torch.zeros(1, 1, 32, 32)
LEAST_GAIN = 0.5  # points of top-1, mean over the seeds
LEAST_FALL = 0.25  # of the feature L1

# Wide enough for the table, whatever the terminal.
console = Console(highlight=False, soft_wrap=True, width=132)


class Variant(NamedTuple):
    """A row of the table: what is trained.

    Attributes:
        title (str): Name in the table.
        config (Path): Its config.
        changes (Mapping): Settings that differ from the config.
    """

    title: str
    config: Path
    changes: Mapping[str, Any] = MappingProxyType({})


VARIANTS = {
    'vim': Variant('Vim', VIM),
    'alone': Variant('TCP-Vim alone', TCP),
    'start': Variant(
        "TCP-Vim from the teacher's weights", DISTILL, {'model.loss_weight': 0}
    ),
    'distilled': Variant('+ distillation, weight 0.06', DISTILL),
}
MODAL = Variant(
    'TCP-Vim alone, modal',
    TCP,
    {'model.backbone.mixer.realization': 'modal'},
)
# Few images for many epochs: there the feature loss has something to do.
SMALL = {
    'small_start': VARIANTS['start']._replace(title='without feature loss'),
    'small_strong': Variant(
        'feature loss at weight 1', DISTILL, {'model.loss_weight': 1.0}
    ),
}


class Result(NamedTuple):
    """What one training gave.

    Attributes:
        accuracy (float): Top-1 on the test images, in percent.
        cpu_s (float): CPU time of the training.
        feature_l1 (float or None): Distance of the features to the teacher's
            on the test images; None without a teacher.
        teacher_untouched (bool): Whether the teacher still has the weights
            of its file.
    """

    accuracy: float
    cpu_s: float
    feature_l1: float | None
    teacher_untouched: bool


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/distill_digits'),
        help='folder for everything that is written (default: %(default)s)',
    )
    parser.add_argument(
        '--teacher', type=Path, help='trained Vim; default: train one'
    )
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument(
        '--epochs', type=int, default=8, help='of the students'
    )
    parser.add_argument('--teacher-epochs', type=int, default=26)
    parser.add_argument(
        '--images', type=int, help='training images (default: all 1347)'
    )
    parser.add_argument(
        '--small-epochs',
        type=int,
        default=40,
        help='of the students that see few images',
    )
    parser.add_argument('--small-images', type=int, default=192)
    parser.add_argument(
        '--modal',
        action='store_true',
        help='add a row for the modal realization of the poles',
    )
    parser.add_argument(
        '--resume',
        action='store_true',
        help='reuse the trainings that are in --out',
    )
    parser.add_argument(
        '--no-fail',
        action='store_true',
        help='exit with status 0 even if a check fails',
    )
    return parser.parse_args()


def make_config(
    variant: Variant, seed: int, epochs: int, images: int | None
) -> Config:
    """Return the config of one training."""
    cfg = launch.load_config(str(variant.config), dict(variant.changes))
    launch.set_scope_defaults(cfg)
    cfg.log_level = 'ERROR'
    cfg.randomness = dict(seed=seed)
    cfg.default_hooks.checkpoint.interval = epochs
    cfg.train_dataloader.dataset.indices = images
    cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs)
    batch_size = cfg.train_dataloader.batch_size
    iterations = (images or 1347) // batch_size
    # The scheduler needs a warm-up of 2 iterations.
    warmup = max(WARMUP * epochs, 2 / iterations)
    linear, cosine = cfg.param_scheduler
    linear.end = cosine.begin = warmup
    cosine.update(end=epochs, T_max=epochs - warmup)
    return cfg


def train(
    cfg: Config, folder: Path, teacher: Path | None, resume: bool
) -> Result:
    """Train a config, or read the result of an earlier training."""
    record = folder / 'result.json'
    if resume and record.is_file():
        return Result(**json.loads(record.read_text()))
    cfg.work_dir = str(folder)
    cfg.experiment_name = str(folder.resolve())
    if teacher is not None:
        cfg.model.teacher_ckpt = str(teacher)
    runner = launch.build_runner(cfg)
    start = time.process_time()
    runner.train()
    cpu_s = time.process_time() - start
    accuracy = runner.message_hub.get_scalar('val/accuracy/top1').current()
    distance, untouched = None, True
    if teacher is not None:
        distance = measure_features(runner.model, runner.val_dataloader)
        untouched = has_weights_of(runner.model.teacher, teacher)
    result = Result(float(accuracy), cpu_s, distance, untouched)
    record.write_text(json.dumps(result._asdict()))
    return result


def measure_features(model: FeatureDistiller, loader: Any) -> float:
    """Mean over the images of the distance to the teacher's features."""
    model.eval()
    total, images = 0.0, 0
    for batch in loader:
        data = model.data_preprocessor(batch, False)
        count = len(data['inputs'])
        total += count * model.compare_features(**data)
        images += count
    return total / images


def has_weights_of(model: nn.Module, checkpoint: Path) -> bool:
    """Whether a model has the weights of a file, bit for bit."""
    saved, held = load_weights(checkpoint), model.state_dict()
    return saved.keys() == held.keys() and all(
        torch.equal(value, held[name]) for name, value in saved.items()
    )


def train_teacher(args: argparse.Namespace) -> Path:
    """Train the teacher, unless there is one."""
    if args.teacher is not None:
        launch.check_exists(str(args.teacher))
        return args.teacher
    folder = args.out / 'teacher'
    epochs = args.teacher_epochs
    cfg = make_config(VARIANTS['vim'], args.seeds[0], epochs, args.images)
    result = train(cfg, folder, None, args.resume)
    report('Vim, the teacher', args.seeds[0], result)
    return folder / f'epoch_{epochs}.pth'


def report(title: str, seed: int, result: Result) -> None:
    """Print what one training gave."""
    line = f'{title}, seed {seed}: top-1 {result.accuracy:.2f} %'
    if result.feature_l1 is not None:
        line += f', feature L1 {result.feature_l1:.4f}'
    console.print(f'{line}, {result.cpu_s:.0f} CPU s')


def train_all(
    variants: dict[str, Variant],
    args: argparse.Namespace,
    teacher: Path,
    epochs: int,
    images: int | None,
) -> dict[str, list[Result]]:
    """Train every variant with every seed."""
    results: dict[str, list[Result]] = {name: [] for name in variants}
    for seed in args.seeds:
        for name, variant in variants.items():
            cfg = make_config(variant, seed, epochs, images)
            needs_teacher = variant.config == DISTILL
            result = train(
                cfg,
                args.out / f'{name}_seed{seed}',
                teacher if needs_teacher else None,
                args.resume,
            )
            report(variant.title, seed, result)
            results[name].append(result)
    return results


def mean_of(results: Sequence[Result], name: str) -> float:
    """Mean of a field over the seeds."""
    return statistics.mean(getattr(result, name) for result in results)


def time_images(models: dict[str, nn.Module], repeats: int = 30) -> dict:
    """Median CPU milliseconds of one image by name, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for _ in range(repeats + 3):
            for name, model in models.items():
                start = time.process_time()
                model(IMAGE)
                times[name].append(1e3 * (time.process_time() - start))
    # The first calls are slower.
    return {name: statistics.median(t[3:]) for name, t in times.items()}


def build_student(variant: Variant) -> nn.Module:
    """Build the model that a variant leaves, without weights."""
    cfg = launch.load_config(str(variant.config), dict(variant.changes))
    init_default_scope(cfg.default_scope)
    model = cfg.model.get('student', cfg.model)
    return MODELS.build(model).eval()


def print_table(
    variants: dict[str, Variant], results: dict[str, list[Result]]
) -> None:
    """Print one row for every variant."""
    models = {name: build_student(v) for name, v in variants.items()}
    # The distilled students are the same model.
    same = {
        name: 'alone' for name, v in variants.items() if v.config == DISTILL
    }
    times = time_images({n: m for n, m in models.items() if n not in same})
    table = Table()
    for column in ('model', 'top-1 (%), each seed', 'mean', 'feature L1'):
        table.add_column(column, no_wrap=True)
    for column in ('SSM FLOPs (M)', 'parameters', 'CPU ms per image', 'CPU s'):
        table.add_column(column, justify='right')
    for name, variant in variants.items():
        runs = results[name]
        with_teacher = runs[0].feature_l1 is not None
        flops = count_flops(models[name], dict(inputs=IMAGE)).published_ssm
        table.add_row(
            variant.title,
            ' '.join(f'{run.accuracy:.2f}' for run in runs),
            f'{mean_of(runs, "accuracy"):.2f}',
            f'{mean_of(runs, "feature_l1"):.4f}' if with_teacher else '',
            f'{flops / 1e6:.2f}',
            f'{sum(p.numel() for p in models[name].parameters()):,}',
            f'{times[same.get(name, name)]:.1f}',
            f'{mean_of(runs, "cpu_s"):.0f}',
        )
    console.print(table)


def explain_default_weight(results: dict[str, list[Result]]) -> None:
    """Print what the paper's weight does here."""
    start, distilled = results['start'], results['distilled']
    points = mean_of(distilled, 'accuracy') - mean_of(start, 'accuracy')
    before = mean_of(start, 'feature_l1')
    after = mean_of(distilled, 'feature_l1')
    console.print(
        f"What the paper's weight of 0.06 does here: top-1 {points:+.2f} "
        f'points (one image is 0.22), feature L1 {before:.4f} to '
        f'{after:.4f} ({100 * (after / before - 1):+.0f} %).'
    )


def check(
    results: dict[str, list[Result]], small: dict[str, list[Result]]
) -> bool:
    """Print whether what must hold does; return whether all of it does."""
    gain = mean_of(results['start'], 'accuracy')
    gain -= mean_of(results['alone'], 'accuracy')
    near, far = (
        mean_of(small[name], 'feature_l1')
        for name in ('small_strong', 'small_start')
    )
    fall = 1 - near / far
    untouched = all(
        run.teacher_untouched
        for runs in (*results.values(), *small.values())
        for run in runs
    )
    checks = (
        (
            f'the start from the teacher gains {gain:+.2f} points, at least '
            f'{LEAST_GAIN:+.2f}',
            gain >= LEAST_GAIN,
        ),
        (
            f'weight 1 ends with a feature L1 of {near:.4f}, {fall:.0%} below '
            f'{far:.4f} without, at least {LEAST_FALL:.0%}',
            fall >= LEAST_FALL,
        ),
        ('the weights of the teacher are untouched', untouched),
    )
    for text, holds in checks:
        console.print(f'{"holds" if holds else "FAILS"}: {text}')
    return all(holds for _, holds in checks)


def main() -> None:
    args = parse_args()
    prepare_environment()
    # More threads would only wait for each other, at this size.
    torch.set_num_threads(1)
    variants = dict(VARIANTS)
    if args.modal:
        variants['modal'] = MODAL
    try:
        teacher = train_teacher(args)
        results = train_all(variants, args, teacher, args.epochs, args.images)
        console.print(
            f'From the teacher, {args.small_images} training images, '
            f'{args.small_epochs} epochs:'
        )
        small = train_all(
            SMALL, args, teacher, args.small_epochs, args.small_images
        )
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f'error: {error}') from error
    print_table(variants, results)
    explain_default_weight(results)
    if not check(results, small) and not args.no_fail:
        raise SystemExit(1)


if __name__ == '__main__':
    main()
