"""Count the FLOPs and parameters of a config's model.

Two counts: what the papers count for their scans, and all operators of one
forward pass, counted from the code: for one image, or for one clip of a phase
recognizer. Nothing is downloaded or trained.

python tools/analysis_tools/get_flops.py configs/vim/vim-tiny_digits.py
"""

import argparse
import sys

from mmssm.compat import prepare_environment
from mmssm.engine import launch


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    launch.add_config_arguments(parser)
    parser.add_argument(
        '--shape',
        type=int,
        nargs='+',
        metavar='SIDE',
        help='height and width, or one side of a square (default: the '
        "backbone's img_size, else 224)",
    )
    return parser


def run(args: argparse.Namespace) -> str:
    """Build the model and return the report as text."""
    from mmengine.registry import MODELS, init_default_scope

    from mmssm.utils.flops import count_flops, example_inputs, format_report
    from mmssm.utils.flops.model_inputs import default_size

    cfg = launch.load_config(args.config, args.cfg_options)
    if 'model' not in cfg:
        raise ValueError(f'{args.config} has no `model`')
    init_default_scope(cfg.get('default_scope', 'mmssm'))
    # Of a distiller, its student: the teacher only trains it.
    model_cfg = cfg.model.get('student', cfg.model)
    model = MODELS.build(model_cfg)
    shape = args.shape or default_size(model_cfg)
    size = (shape[0], shape[-1])
    inputs = example_inputs(model, model_cfg, size)
    report = count_flops(model, inputs)
    return f'input: {size[0]} x {size[1]}\n\n{format_report(report)}'


def main() -> int:
    """Print the report."""
    prepare_environment()
    parser = build_parser()
    args = parser.parse_args()
    if args.shape and (len(args.shape) > 2 or min(args.shape) < 1):
        parser.error('--shape: expected one or two positive numbers')
    try:
        print(run(args))
    except (OSError, ValueError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
