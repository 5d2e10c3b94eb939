"""Test a model of mmssm, mmpretrain, mmseg or mmdet.

python tools/test.py CONFIG CHECKPOINT --out predictions/
"""

import argparse
import os
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.evaluator import DumpResults
from mmengine.model import is_model_wrapper
from mmengine.utils import import_modules_from_strings

from mmssm.compat import (
    check_launcher,
    finish_distributed,
    prepare_distributed,
    prepare_environment,
)
from mmssm.engine import launch

# Settings with which the visualization hook of each library draws.
SHOW_SETTINGS = {
    'VisualizationHook': ('enable', 'out_dir'),  # mmpretrain
    'SegVisualizationHook': ('draw', None),  # writes where the visualizer does
    'DetVisualizationHook': ('draw', 'test_out_dir'),
}


# A directory of one of these names is hardly meant.
FILE_SUFFIXES = {
    *('.csv', '.json', '.jsonl', '.log', '.npy', '.npz', '.pt', '.pth'),
    *('.tsv', '.txt', '.xml', '.yaml', '.yml'),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description='Test a model')
    launch.add_config_arguments(parser)
    parser.add_argument('checkpoint', help='weights: a path or URL')
    launch.add_runner_arguments(parser)
    parser.add_argument(
        '--out',
        help='where to write predictions: a .pkl file, or a directory for '
        'phase recognition (one JSONL file per video) and segmentation '
        '(one image per sample)',
    )
    parser.add_argument(
        '--show', action='store_true', help='show painted images in a window'
    )
    parser.add_argument(
        '--show-dir', help='directory for painted images of the test samples'
    )
    parser.add_argument(
        '--wait-time',
        type=float,
        default=2,
        help='seconds that a painted image is shown',
    )
    return parser


def is_pickle(out: str) -> bool:
    """Tell whether the predictions go to one pickle file."""
    return Path(out).suffix in ('.pkl', '.pickle')


def check_output(out: str) -> None:
    """Check where the predictions go before the test that makes them.

    Args:
        out (str): A directory or a pickle file.

    Raises:
        ValueError: It is neither.
    """
    path = Path(out)
    if is_pickle(out):
        if path.is_dir():
            raise ValueError(f'--out {out} is a directory; expected a file')
    elif path.is_file() or (
        path.suffix.lower() in FILE_SUFFIXES and not path.is_dir()
    ):
        raise ValueError(
            f'--out {out} is a file of another kind; expected a directory, '
            'or a file such as predictions.pkl'
        )


def make_output(out: str) -> None:
    """Make the directory of the predictions.

    Args:
        out (str): A directory or a pickle file.

    Raises:
        ValueError: It cannot be made or written to.
    """
    folder = Path(out).parent if is_pickle(out) else Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f'--out {out}: the directory cannot be made ({error})'
        ) from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f'--out {out}: `{folder}` is not writable')


def set_output(cfg: Config, out: str) -> None:
    """Let the metric of the config write predictions to a directory.

    Args:
        cfg (Config): Runner config, changed in place.
        out (str): The directory.

    Raises:
        ValueError: No metric of the config writes to a directory.
    """
    evaluator = cfg.get('test_evaluator') or {}
    metrics = [evaluator] if isinstance(evaluator, dict) else evaluator
    kinds = [str(metric.get('type')) for metric in metrics]
    for metric, kind in zip(metrics, kinds, strict=True):
        if kind.endswith('PhaseMetric'):
            metric.prediction_dir = out
            return
        if kind.endswith('IoUMetric'):
            metric.output_dir = out
            metric.keep_results = True
            return
    raise ValueError(
        f'--out {out} is a directory, and no metric of this config writes '
        f'predictions to one (metrics: {", ".join(kinds)}); use a file such '
        'as predictions.pkl'
    )


def set_visualization(cfg: Config, args: argparse.Namespace) -> None:
    """Switch on the visualization hook of the config.

    Args:
        cfg (Config): Runner config, changed in place.
        args (argparse.Namespace): Parsed command line.

    Raises:
        ValueError: The config has no hook that paints test samples.
    """
    hook = cfg.get('default_hooks', {}).get('visualization') or ConfigDict()
    kind = str(hook.get('type')).rpartition('.')[2]
    if kind not in SHOW_SETTINGS:
        raise ValueError(
            '--show and --show-dir need a hook that paints the samples of '
            f'this task in default_hooks.visualization; it is `{kind}`. '
            'Phase predictions are drawn by '
            'tools/analysis_tools/plot_timeline.py'
        )
    switch, directory = SHOW_SETTINGS[kind]
    hook[switch] = True
    hook.show = args.show
    hook.wait_time = args.wait_time
    if args.show_dir is not None and directory is not None:
        hook[directory] = args.show_dir
    elif args.show_dir is not None:
        cfg.visualizer.save_dir = args.show_dir


def merge_args(cfg: Config, args: argparse.Namespace) -> None:
    """Write the command line into the config.

    Args:
        cfg (Config): Runner config, changed in place.
        args (argparse.Namespace): Parsed command line.
    """
    launch.check_exists(args.checkpoint)
    launch.set_work_dir(cfg, args.work_dir, args.config)
    launch.set_scope_defaults(cfg)
    cfg.load_from = args.checkpoint
    cfg.resume = False
    if args.out is not None:
        check_output(args.out)
        if not is_pickle(args.out):
            set_output(cfg, args.out)
    if args.show or args.show_dir is not None:
        set_visualization(cfg, args)


def dump_metric(cfg: Config, out: str) -> DumpResults:
    """Return the metric that collects predictions in a pickle file.

    Args:
        cfg (Config): Runner config.
        out (str): The file.
    """
    if cfg.get('default_scope') == 'mmdet':
        # Encodes masks, which are too large as arrays.
        evaluation = import_modules_from_strings('mmdet.evaluation')
        return evaluation.DumpDetResults(out_file_path=out)
    return DumpResults(out_file_path=out)


def main() -> None:
    """Test."""
    prepare_environment()
    parser = build_parser()
    args = parser.parse_args()
    try:
        cfg = launch.load_config(args.config, args.cfg_options)
        merge_args(cfg, args)
        check_launcher(args.launcher)
        if args.out is not None:
            make_output(args.out)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    prepare_distributed(cfg, args.launcher)
    runner = launch.build_runner(cfg, args.local_rank)
    model = runner.model
    try:
        launch.load_weights(
            model.module if is_model_wrapper(model) else model,
            args.checkpoint,
        )
    except ValueError as error:
        parser.error(str(error))
    if args.out is not None and is_pickle(args.out):
        runner.test_evaluator.metrics.append(dump_metric(cfg, args.out))
    runner.test()
    finish_distributed()


if __name__ == '__main__':
    main()
