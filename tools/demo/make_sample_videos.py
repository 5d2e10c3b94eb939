"""Write endoscope-like sample videos with known phases.

The videos are drawn, not filmed: they need memory as real operations do (two
tools serve two phases each), but say nothing about real accuracy.

Example:
    python tools/demo/make_sample_videos.py --out data/sample --seed 0
"""

import argparse
import sys

from rich.progress import track

from mmssm.datasets.synthetic import read_sample_info, write_sample_videos


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line.

    Args:
        argv (list[str], optional): Arguments. Defaults to ``sys.argv[1:]``.

    Returns:
        argparse.Namespace: The arguments.
    """
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--out', required=True, help='folder to write, in Cholec80 layout'
    )
    parser.add_argument('--seed', type=int, default=0, help='default: 0')
    parser.add_argument(
        '--num-train', type=int, default=24, help='default: 24'
    )
    parser.add_argument('--num-test', type=int, default=8, help='default: 8')
    parser.add_argument(
        '--size', type=int, default=64, help='side in pixels, default: 64'
    )
    parser.add_argument(
        '--force',
        action='store_true',
        help='draw anew, replacing sample videos that are there',
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Write the videos and say what was written.

    Args:
        argv (list[str], optional): Arguments. Defaults to ``sys.argv[1:]``.

    Returns:
        int: Exit status.
    """
    args = parse_args(argv)
    try:
        out_dir = write_sample_videos(
            args.out,
            seed=args.seed,
            num_train=args.num_train,
            num_test=args.num_test,
            size=args.size,
            force=args.force,
            progress=lambda videos: track(videos, 'Drawing sample videos'),
        )
    except FileExistsError as error:
        print(f'error: {error} (--force)', file=sys.stderr)
        return 1
    except (ValueError, RuntimeError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    info = read_sample_info(out_dir)
    ceilings = info['ceilings']
    print(
        f'{out_dir}: {info["num_train"]} training and {info["num_test"]} '
        f'test videos, {sum(info["num_frames"].values())} frames at 1 fps. '
        'Best possible accuracy on the test videos from single frames '
        f'{ceilings["frame"]:.2f}, with a memory emptied every 64 frames '
        f'{ceilings["clip"]:.2f}, with the whole video '
        f'{ceilings["video"]:.2f}.'
    )
    return 0


if __name__ == '__main__':
    sys.exit(main())
