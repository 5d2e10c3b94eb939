"""Print a config with its bases merged.

python tools/misc/print_config.py mmseg::upernet/upernet_r50_4xb2-40k_\
cityscapes-512x1024.py
"""

import argparse
from pathlib import Path

from mmssm.compat import prepare_environment
from mmssm.engine import launch

CONFIG_SUFFIXES = ('.py', '.yml', '.yaml', '.json')


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description='Print a config with its bases merged'
    )
    launch.add_config_arguments(parser)
    parser.add_argument('--save-path', help='also write it to this file')
    return parser


def main() -> None:
    """Print the config."""
    prepare_environment()
    parser = build_parser()
    args = parser.parse_args()
    path = args.save_path
    if path is not None and Path(path).suffix not in CONFIG_SUFFIXES:
        parser.error(
            f'--save-path {path}: expected a name ending in one of '
            f'{", ".join(CONFIG_SUFFIXES)}'
        )
    try:
        cfg = launch.load_config(args.config, args.cfg_options)
        if path is not None:
            cfg.dump(path)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(cfg.pretty_text)


if __name__ == '__main__':
    main()
