"""Recognise the phases of a video, or of a camera, frame by frame."""

import argparse
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mmengine.config import DictAction
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mmssm.apis.streaming import StreamingSession, StreamResult
from mmssm.apis.video import SampledVideo
from mmssm.compat import prepare_environment
from mmssm.datasets.annotations import read_phase_file
from mmssm.engine.launch import load_config
from mmssm.evaluation.functional import FramePrediction, PredictionWriter
from mmssm.visualization import plot_timeline

# What a shell reports for a program that was ended by Ctrl-C.
EXIT_INTERRUPTED = 130
# Raised with a message for the user, all through the library.
ERRORS = (ValueError, TypeError, RuntimeError, OSError)
# Extracting frames and rounding rates cost a label or two.
MAX_LABEL_DIFFERENCE = 2


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Writes <video id>.jsonl, one line per frame, and '
        '<video id>_timeline.png. Ctrl-C stops early and leaves both valid.',
    )
    parser.add_argument('video', help='video file, or index of a camera')
    parser.add_argument(
        '--config',
        required=True,
        help='config of the model: a path, a path inside the installed '
        'package (configs/...), or package::path',
    )
    parser.add_argument('--checkpoint', required=True, help='its weights')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='settings of the config to override, by dotted key',
    )
    parser.add_argument(
        '--out-dir',
        default='work_dirs/stream',
        help='folder for the results (default: %(default)s)',
    )
    parser.add_argument(
        '--device', default='cpu', help='torch device (default: %(default)s)'
    )
    parser.add_argument(
        '--video-id', help='name of the results (default: that of the file)'
    )
    parser.add_argument(
        '--max-frames', type=int, help='stop after that many frames'
    )
    parser.add_argument(
        '--video-fps',
        type=float,
        help='frame rate of the file, if its container does not say',
    )
    parser.add_argument(
        '--gt', help='phase annotations, to compare with (Cholec80 layout)'
    )
    parser.add_argument(
        '--gt-fps',
        type=int,
        default=25,
        help='annotation rows per second (default: %(default)s)',
    )
    parser.add_argument(
        '--no-live', action='store_true', help='no live line in the terminal'
    )
    return parser.parse_args()


@dataclasses.dataclass
class History:
    """What the timeline is drawn from: a few numbers per frame."""

    phases: list[int] = dataclasses.field(default_factory=list)
    probabilities: list[np.ndarray] = dataclasses.field(default_factory=list)
    intensities: list[float | None] = dataclasses.field(default_factory=list)
    latencies_ms: list[float] = dataclasses.field(default_factory=list)

    def add(self, result: StreamResult) -> None:
        self.phases.append(result.phase)
        self.probabilities.append(result.probabilities)
        self.intensities.append(result.intensity)
        self.latencies_ms.append(result.latency_ms)


@contextmanager
def interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C end the loop after the frame at hand; a second one kills.

    Yields:
        Callable: Says whether Ctrl-C was pressed.
    """
    pressed = []

    def handle(signum: int, _: object) -> None:
        pressed.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def live_line(result: StreamResult, total: int) -> Text:
    """Lay out the line that is renewed with every frame."""
    minutes, seconds = divmod(int(result.time_s), 60)
    of = f'/{total}' if total else ''
    parts = [
        f'{minutes:02d}:{seconds:02d}',
        f'frame {result.frame_idx + 1}{of}',
        f'{result.phase_name} {result.probabilities[result.phase]:.2f}',
    ]
    if result.intensity is not None:
        parts.append(f'λ {result.intensity:.2f}')
    rate = 1e3 / max(result.latency_ms, 1e-3)
    parts.append(f'{result.latency_ms:.1f} ms ({rate:.0f} fps)')
    return Text('  '.join(parts), no_wrap=True)


def read_ground_truth(
    args: argparse.Namespace, session: StreamingSession
) -> np.ndarray | None:
    if args.gt is None:
        return None
    stride = args.gt_fps / session.fps
    if stride != int(stride) or stride < 1:
        raise ValueError(
            f'`--gt-fps` is {args.gt_fps}; expected a multiple of the '
            f'{session.fps:g} fps of the model'
        )
    return read_phase_file(args.gt, session.classes, int(stride))


def stream(
    args: argparse.Namespace,
    session: StreamingSession,
    video: SampledVideo,
    video_id: str,
    gt_phase: np.ndarray | None,
    console: Console,
    history: History,
) -> bool:
    """Run the loop, filling ``history``; returns if it was interrupted."""
    total = len(video)
    if args.max_frames is not None:
        total = min(total, args.max_frames) if total else args.max_frames
    path = Path(args.out_dir, f'{video_id}.jsonl')
    live = Live(console=console, refresh_per_second=10, transient=True)
    show_live = console.is_terminal and not args.no_live
    with interrupt_flag() as interrupted, PredictionWriter(path) as writer:
        if show_live:
            live.start()
        try:
            for frame in video:
                result = session.step(frame.image)
                # A camera drops frames: its clock counts, not the index.
                seconds = frame.time_s if video.is_camera else result.time_s
                result = result._replace(time_s=seconds)
                writer.write(
                    FramePrediction(
                        video_id=video_id,
                        frame_idx=result.frame_idx,
                        time_s=result.time_s,
                        phase=result.phase,
                        phase_name=result.phase_name,
                        probabilities=result.probabilities,
                        intensity=result.intensity,
                        gt_phase=label_at(gt_phase, result.frame_idx),
                    )
                )
                history.add(result)
                if show_live:
                    live.update(live_line(result, total))
                if interrupted() or len(history.phases) == args.max_frames:
                    break
        finally:
            live.stop()
        return interrupted()


def label_at(gt_phase: np.ndarray | None, frame_idx: int) -> int | None:
    """Annotation of a frame; -1 after the end of the file."""
    if gt_phase is None:
        return None
    return int(gt_phase[frame_idx]) if frame_idx < len(gt_phase) else -1


def draw(
    args: argparse.Namespace,
    session: StreamingSession,
    video_id: str,
    history: History,
    gt_phase: np.ndarray | None,
) -> Path:
    """Draw the timeline of what was seen."""
    ribbons = {}
    if gt_phase is not None:
        ribbons['ground truth'] = np.array(
            [label_at(gt_phase, i) for i in range(len(history.phases))]
        )
    ribbons['prediction'] = np.array(history.phases)
    has_intensity = None not in history.intensities
    path = Path(args.out_dir, f'{video_id}_timeline.png')
    plot_timeline(
        ribbons,
        session.classes,
        palette=session.palette,
        fps=session.fps,
        probabilities=np.stack(history.probabilities),
        intensity=np.array(history.intensities) if has_intensity else None,
        title=video_id,
        path=path,
    )
    return path


def report(
    console: Console,
    history: History,
    gt_phase: np.ndarray | None,
    paths: list[Path],
) -> None:
    """Print the summary."""
    count = len(history.phases)
    median = np.median(history.latencies_ms)
    console.print(f'{count} frames, median latency {median:.1f} ms per frame')
    if gt_phase is not None:
        known = min(count, len(gt_phase))
        right = gt_phase[:known] == np.array(history.phases[:known])
        if known:
            console.print(
                f'accuracy {100 * right.mean():.2f} % of {known} annotated '
                'frames (strict)'
            )
    for path in paths:
        console.print(f'wrote {path}', soft_wrap=True)


def warn_of_other_rate(
    args: argparse.Namespace, num_frames: int, num_labels: int
) -> None:
    """Warn if the annotations do not cover a video that was seen whole."""
    if abs(num_frames - num_labels) > MAX_LABEL_DIFFERENCE:
        print(
            f'warning: {args.video} has {num_frames} frames at the rate of '
            f'the model, {args.gt} has {num_labels} labels at --gt-fps '
            f'{args.gt_fps}. Is --gt-fps the number of rows per second, and '
            '--gt the file of this video?',
            file=sys.stderr,
        )


def run(args: argparse.Namespace, console: Console) -> int:
    is_camera = args.video.isdigit() and not Path(args.video).exists()
    source = int(args.video) if is_camera else args.video
    video_id = args.video_id or (
        f'camera{source}' if is_camera else Path(args.video).stem
    )
    if Path(video_id).name != video_id or video_id == '..':
        raise ValueError(
            f'`--video-id` is {video_id!r}; expected a name of files, '
            'without path separators'
        )
    if args.max_frames is not None and args.max_frames < 1:
        raise ValueError(
            f'`--max-frames` is {args.max_frames}; expected at least 1'
        )
    session = StreamingSession.from_config(
        load_config(args.config, args.cfg_options),
        args.checkpoint,
        args.device,
    )
    gt_phase = read_ground_truth(args, session)
    history, interrupted, failure = History(), False, None
    with SampledVideo(source, session.fps, args.video_fps) as video:
        console.print(
            f'streaming {video_id} at {session.fps:g} fps on {session.device}'
        )
        try:
            interrupted = stream(
                args, session, video, video_id, gt_phase, console, history
            )
        except ERRORS as error:
            # What was seen until then is still drawn.
            failure = error
    paths = [Path(args.out_dir, f'{video_id}.jsonl')]
    if history.phases:
        paths.append(draw(args, session, video_id, history, gt_phase))
        report(console, history, gt_phase, paths)
    if failure is not None:
        raise failure
    is_whole = not (is_camera or interrupted or args.max_frames)
    if gt_phase is not None and is_whole:
        warn_of_other_rate(args, len(history.phases), len(gt_phase))
    if interrupted:
        console.print('interrupted: the results end at the last frame seen')
    return EXIT_INTERRUPTED if interrupted else 0


def main() -> int:
    args = parse_args()
    prepare_environment()
    console = Console(highlight=False)
    try:
        return run(args, console)
    except ERRORS as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Before the first frame, or pressed twice.
        print('interrupted', file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == '__main__':
    sys.exit(main())
