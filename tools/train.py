"""Train a model of mmssm, mmpretrain, mmseg or mmdet.

python tools/train.py configs/surgical_mamba/surgical-mamba_tiny_sample.py
"""

import argparse

from mmengine.config import Config

from mmssm.compat import (
    check_launcher,
    finish_distributed,
    prepare_amp,
    prepare_distributed,
    prepare_environment,
)
from mmssm.engine import launch


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description='Train a model')
    launch.add_config_arguments(parser)
    launch.add_runner_arguments(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='checkpoint to go on from; without a value, the latest of the '
        'work directory',
    )
    parser.add_argument(
        '--amp',
        action='store_true',
        help='train in mixed precision (on the CPU in bfloat16)',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the batch size of this run over '
        'that of the config',
    )
    parser.add_argument('--seed', type=int, help='seed of this run')
    return parser


def merge_args(cfg: Config, args: argparse.Namespace) -> None:
    """Write the command line into the config.

    Args:
        cfg (Config): Runner config, changed in place.
        args (argparse.Namespace): Parsed command line.
    """
    launch.set_work_dir(cfg, args.work_dir, args.config)
    launch.set_scope_defaults(cfg)
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None
        if args.resume != 'auto':
            launch.check_resumable(args.resume)
            cfg.load_from = args.resume
    if args.amp:
        if not cfg.get('optim_wrapper'):
            raise ValueError(
                '--amp needs an `optim_wrapper` in the config, and this one '
                'has none'
            )
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    prepare_amp(cfg)
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise ValueError(
                '--auto-scale-lr needs the batch size of the published '
                'learning rate: add auto_scale_lr=dict(base_batch_size=...) '
                'to the config'
            )
        cfg.auto_scale_lr.enable = True
    if args.seed is not None:
        cfg.randomness = {**cfg.get('randomness', {}), 'seed': args.seed}


def main() -> None:
    """Train."""
    prepare_environment()
    parser = build_parser()
    args = parser.parse_args()
    try:
        cfg = launch.load_config(args.config, args.cfg_options)
        merge_args(cfg, args)
        check_launcher(args.launcher)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    prepare_distributed(cfg, args.launcher)
    launch.build_runner(cfg, args.local_rank).train()
    finish_distributed()


if __name__ == '__main__':
    main()
