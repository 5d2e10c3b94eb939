"""Print a config with its bases merged.

python tools/misc/print_config.py mmseg::upernet/upernet_r50_4xb2-40k_\
cityscapes-512x1024.py
"""

import argparse

from mmssm.compat import prepare_environment
from mmssm.engine import launch


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
    try:
        cfg = launch.load_config(args.config, args.cfg_options)
    except FileNotFoundError as error:
        parser.error(str(error))
    print(cfg.pretty_text)
    if args.save_path is not None:
        cfg.dump(args.save_path)


if __name__ == '__main__':
    main()
