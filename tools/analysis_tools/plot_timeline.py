"""Draw the phase timeline of a video from prediction files."""

import argparse
import sys
from pathlib import Path

import numpy as np

from mmssm.apis.loading import find_test_dataset, merge_metainfo
from mmssm.compat import prepare_environment
from mmssm.engine.launch import load_config
from mmssm.evaluation.functional import (
    FramePrediction,
    read_predictions,
    stack_predictions,
)
from mmssm.visualization import plot_timeline


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Several files are drawn below each other: predictions of '
        'several models for one video.',
    )
    parser.add_argument(
        'predictions', nargs='+', help='JSONL files of one video'
    )
    parser.add_argument(
        '--out', help='picture (default: <first file>_timeline.png)'
    )
    parser.add_argument(
        '--labels', nargs='+', help='names of the files (default: their stems)'
    )
    parser.add_argument(
        '--config', help='config that names the phases and their colours'
    )
    parser.add_argument(
        '--probabilities',
        choices=('stack', 'predicted', 'none'),
        default='stack',
        help='panel of the first file (default: %(default)s)',
    )
    return parser.parse_args()


def find_classes(
    files: list[list[FramePrediction]], config: str | None
) -> tuple[list[str], list | None]:
    """Names and colours of the phases: of the config, or of the files."""
    num_classes = len(files[0][0].probabilities)
    if config is not None:
        meta = merge_metainfo(find_test_dataset(load_config(config)), {}, '')
        classes = list(meta.get('classes') or [])
        if len(classes) != num_classes:
            raise ValueError(
                f'{config} names {len(classes)} phases; the predictions have '
                f'{num_classes}'
            )
        return classes, meta.get('palette')
    # Files name only the phases that are predicted somewhere.
    names = {p.phase: p.phase_name for frames in files for p in frames}
    return [names.get(i, f'phase {i}') for i in range(num_classes)], None


def run(args: argparse.Namespace) -> Path:
    files = [read_predictions(path) for path in args.predictions]
    for path, frames in zip(args.predictions, files, strict=True):
        if not frames:
            raise ValueError(f'{path} holds no frame')
    if args.labels is None:
        single = len(files) == 1
        labels = [
            'prediction' if single else Path(p).stem for p in args.predictions
        ]
        # Runs keep their predictions under the same names.
        if len(set(labels)) < len(labels):
            labels = [
                f'{Path(p).parent.name}/{Path(p).stem}'
                for p in args.predictions
            ]
    else:
        labels = args.labels
    if len(set(labels)) != len(files):
        raise ValueError(
            f'`--labels` are {labels}; expected {len(files)} different names'
        )
    videos = [stack_predictions(frames) for frames in files]
    video_ids = sorted({video.video_id for video in videos})
    if len(video_ids) > 1:
        raise ValueError(
            f'the files are of different videos ({", ".join(video_ids)}); '
            'expected one'
        )
    classes, palette = find_classes(files, args.config)
    ribbons = {}
    annotated = [v.gt_phase for v in videos if v.gt_phase is not None]
    if annotated:
        ribbons['ground truth'] = max(annotated, key=len)
    ribbons.update(
        {
            label: video.phase
            for label, video in zip(labels, videos, strict=True)
        }
    )
    first = videos[0]
    steps = np.diff(first.time_s)
    probabilities = {
        'stack': first.probabilities,
        'predicted': first.probabilities.max(axis=1),
        'none': None,
    }[args.probabilities]
    out = Path(
        args.out
        or Path(args.predictions[0]).with_suffix('').as_posix()
        + '_timeline.png'
    )
    plot_timeline(
        ribbons,
        classes,
        palette=palette,
        fps=1 / float(np.median(steps)) if len(steps) else 1.0,
        probabilities=probabilities,
        intensity=first.intensity,
        title=first.video_id,
        path=out,
    )
    return out


def main() -> int:
    args = parse_args()
    prepare_environment()
    try:
        print(f'wrote {run(args)}')
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
