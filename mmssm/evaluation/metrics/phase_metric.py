"""Strict phase recognition scores, gathered frame by frame."""

import dataclasses
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger
from numpy.typing import NDArray

from mmssm.evaluation.functional.averaging import Order
from mmssm.evaluation.functional.prediction_io import (
    FramePrediction,
    write_predictions,
)
from mmssm.evaluation.functional.strict import (
    PHASE_SCORES,
    Absent,
    StrictOptions,
    StrictScores,
    score_videos,
)
from mmssm.registry import METRICS

_NUM_SHOWN = 5


# A dataclass: mmengine turns a named tuple into a plain one on the way.
@dataclasses.dataclass(frozen=True)
class _Clip:
    """The real frames of one clip; what is gathered from the ranks."""

    video_id: str
    frame_idx: int
    end_of_video: bool
    gt_phase: NDArray
    pred_phase: NDArray
    scores: NDArray
    intensity: NDArray | None


class _Video(NamedTuple):
    """All frames of one video, in order."""

    gt_phase: NDArray
    pred_phase: NDArray
    scores: NDArray
    intensity: NDArray | None


@METRICS.register_module()
class PhaseMetric(BaseMetric):
    """Strict per-video phase recognition metric.

    Takes :class:`mmssm.structures.PhaseDataSample` windows in any order and
    from any number of processes, and puts the videos together again. Padded
    frames are dropped and a frame that comes twice counts once, so the result
    does not depend on how the videos were dealt to lanes and ranks.

    The results are percentages: ``accuracy`` (mean over videos),
    ``accuracy_std`` (over videos) and ``precision``, ``recall``, ``jaccard``,
    ``f1`` averaged as ``absent`` and ``order`` say. A table of the phases,
    headed by the protocol, is logged.

    Args:
        num_classes (int, optional): Number of phases. Default: that of the
            dataset's ``classes``.
        absent (str): What a phase scores in a video that lacks it, see
            :class:`~mmssm.evaluation.functional.StrictOptions`.
            Default: 'undefined'.
        order (str): 'phase_first', 'video_first' or 'pooled', see there.
            Default: 'phase_first'.
        ignore_index (int): Annotation id of frames that are not scored.
            Default: -1.
        prediction_dir (str, optional): Folder for the predictions, one
            ``<video_id>.jsonl`` per video with the annotations beside them;
            relative to the working directory. Default: None, none written.
        collect_device (str): 'cpu' or 'gpu'. Default: 'cpu'.
        prefix (str, optional): Put before the names of the results.
            Default: None.
        collect_dir (str, optional): Shared folder for gathering on the CPU.
            Default: None.

    Raises:
        ValueError: If an option is unknown. While evaluating: if the model
            has another number of phases than the dataset, if a video has
            missing frames or contradictory annotations, or if a prediction
            is NaN.
    """

    # No prefix by default, and no warning about it.
    default_prefix = ''

    def __init__(
        self,
        num_classes: int | None = None,
        absent: Absent = 'undefined',
        order: Order = 'phase_first',
        ignore_index: int = -1,
        prediction_dir: str | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device, prefix, collect_dir)
        self.num_classes = num_classes
        self.options = StrictOptions(absent, order, ignore_index)
        self.prediction_dir = prediction_dir

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the real frames of one batch of windows.

        Args:
            data_batch (Any): Not used.
            data_samples (Sequence[dict]): Predicted windows, see
                :class:`mmssm.structures.PhaseDataSample`.

        Raises:
            ValueError: If predictions are missing, or are of another number
                of phases than the dataset has.
        """
        for sample in data_samples:
            for name in ('gt_phase', 'pred_phase', 'pred_scores'):
                if name not in sample:
                    raise ValueError(
                        f'a data sample has no `{name}`; expected the samples '
                        "that the model returns with mode='predict'"
                    )
            self._check_width(sample['pred_scores'].shape[-1])
            intensity = sample.get('pred_intensity')
            for clip, num_frames in enumerate(sample['num_frames']):
                if num_frames == 0:
                    continue
                frames = (clip, slice(num_frames))
                self.results.append(
                    _Clip(
                        video_id=str(sample['video_id'][clip]),
                        frame_idx=int(sample['frame_idx'][clip]),
                        end_of_video=bool(sample['end_of_video'][clip]),
                        gt_phase=_to_numpy(sample['gt_phase'][frames]),
                        pred_phase=_to_numpy(sample['pred_phase'][frames]),
                        scores=_to_numpy(sample['pred_scores'][frames]),
                        intensity=None
                        if intensity is None
                        else _to_numpy(intensity[frames]),
                    )
                )

    def evaluate(self, size: int) -> dict:
        """Gather all processes and score.

        Args:
            size (int): Not used. mmengine cuts the gathered list to the
                length of the dataset to drop padding, but there are several
                clips to a window and windows of several videos: duplicates
                are told by their frames instead.

        Returns:
            dict: Scores in percent, by name.
        """
        return super().evaluate(sys.maxsize)

    def compute_metrics(self, results: list[_Clip]) -> dict[str, float]:
        """Score the gathered clips, then write the predictions.

        Args:
            results (list[_Clip]): Clips of all processes, in any order.

        Returns:
            dict[str, float]: Scores in percent, by name; empty if nothing is
            annotated.
        """
        clips: dict[str, list[_Clip]] = {}
        for clip in results:
            clips.setdefault(clip.video_id, []).append(clip)
        videos = {
            video_id: _join_clips(video_id, clips[video_id])
            for video_id in sorted(clips, key=_natural_key)
        }
        # Neither a full disk nor a wrong annotation costs the other half.
        try:
            return self._score(videos)
        finally:
            if self.prediction_dir is not None:
                self._write_all(videos)

    def _score(self, videos: dict[str, _Video]) -> dict[str, float]:
        """Score the annotated videos and log the table."""
        logger = MMLogger.get_current_instance()
        labelled = {
            video_id: (video.gt_phase, video.pred_phase)
            for video_id, video in videos.items()
            if (video.gt_phase != self.options.ignore_index).any()
        }
        if len(labelled) < len(videos):
            unlabelled = [v for v in videos if v not in labelled]
            logger.warning(
                f'{len(unlabelled)} of {len(videos)} videos have no labelled '
                'frame and are not scored: '
                f'{", ".join(unlabelled[:_NUM_SHOWN])}'
            )
        if not labelled:
            return {}
        num_classes = self.num_classes or len(self._classes(videos))
        scores = score_videos(labelled, num_classes, self.options)
        logger.info('\n' + self.format_table(scores))
        summary = {
            'accuracy': scores.accuracy.mean,
            'accuracy_std': scores.accuracy.std,
        }
        summary.update({n: scores.means[n].mean for n in PHASE_SCORES})
        return summary

    def format_table(self, scores: StrictScores) -> str:
        """Lay out the scores of every phase, headed by the protocol.

        Args:
            scores (StrictScores): The scores.

        Returns:
            str: Lines of text.
        """
        fps = (self.dataset_meta or {}).get('fps')
        rate = 'unknown fps' if fps is None else f'{fps:g} fps'
        names = self._classes(None, scores.counts.shape[-1])
        width = max(len(name) for name in [*names, 'accuracy (videos)'])
        frames = scores.counts.sum(axis=(0, 2))

        def row(name: str, cells: Sequence[str]) -> str:
            return f'{name:<{width}}' + ''.join(f'{c:>15}' for c in cells)

        def cell(mean: float, std: float | None = None) -> str:
            if math.isnan(mean):
                return '-'
            return f'{mean:.2f}' + ('' if std is None else f' ± {std:.2f}')

        lines = [
            f'{len(scores.video_ids)} videos at {rate}, '
            f'{scores.options.describe()}',
            row('phase', ['frames', *PHASE_SCORES]),
        ]
        for phase, name in enumerate(names):
            values = [cell(scores.per_phase[n][phase]) for n in PHASE_SCORES]
            lines.append(row(name, [str(frames[phase]), *values]))
        means = [cell(*scores.means[name]) for name in PHASE_SCORES]
        lines.append(row('mean', [str(frames.sum()), *means]))
        lines.append(row('accuracy (videos)', [cell(*scores.accuracy)]))
        return '\n'.join(lines)

    def _classes(
        self, videos: dict[str, _Video] | None, num_classes: int | None = None
    ) -> list[str]:
        """Names of the phases, numbered where the dataset does not say."""
        classes = (self.dataset_meta or {}).get('classes')
        if num_classes is None and classes is None and videos:
            num_classes = next(iter(videos.values())).scores.shape[-1]
        if classes is None or len(classes) != (num_classes or len(classes)):
            return [f'phase {phase}' for phase in range(num_classes or 0)]
        return list(classes)

    def _check_width(self, width: int) -> None:
        """Refuse scores of another number of phases than there are."""
        classes = (self.dataset_meta or {}).get('classes')
        for expected, source in (
            (self.num_classes, '`num_classes` of the metric'),
            (None if classes is None else len(classes), 'the dataset'),
        ):
            if expected is not None and width != expected:
                raise ValueError(
                    f'the model scores {width} phases, but there are '
                    f'{expected} by {source}; set `model.head.num_classes` '
                    'of the config to the number of phases of the dataset '
                    'and use a checkpoint trained with it'
                )

    def _write_all(self, videos: dict[str, _Video]) -> None:
        """Write the predictions and tell of older files beside them."""
        logger = MMLogger.get_current_instance()
        for video_id, video in videos.items():
            self._write(video_id, video)
        logger.info(
            f'predictions of {len(videos)} videos written to '
            f'{self.prediction_dir}'
        )
        others = sorted(
            path.name
            for path in Path(self.prediction_dir).glob('*.jsonl')
            if path.stem not in videos
        )
        if others:
            more = ' ...' if len(others) > _NUM_SHOWN else ''
            logger.warning(
                f'{self.prediction_dir} also holds {len(others)} prediction '
                'files that this run did not write: '
                f'{", ".join(others[:_NUM_SHOWN])}{more}; scores of the whole '
                'folder would include them'
            )

    def _write(self, video_id: str, video: _Video) -> None:
        if Path(video_id).name != video_id:
            raise ValueError(
                f'video id {video_id!r} cannot be the name of a file; '
                'expected one without path separators'
            )
        fps = float((self.dataset_meta or {}).get('fps', 1))
        names = self._classes(None, video.scores.shape[-1])
        write_predictions(
            Path(self.prediction_dir, f'{video_id}.jsonl'),
            (
                FramePrediction(
                    video_id=video_id,
                    frame_idx=frame,
                    time_s=frame / fps,
                    phase=int(phase),
                    phase_name=names[phase],
                    probabilities=video.scores[frame],
                    intensity=None
                    if video.intensity is None
                    else video.intensity[frame],
                    gt_phase=int(video.gt_phase[frame]),
                )
                for frame, phase in enumerate(video.pred_phase)
            ),
        )


def _to_numpy(values: torch.Tensor | NDArray) -> NDArray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16.
        values = values.float() if values.is_floating_point() else values
        # A copy: a slice would keep the whole window alive.
        return values.numpy().copy()
    return np.array(values)


def _natural_key(name: str) -> list[tuple[bool, int, str]]:
    """Sort 'video9' before 'video10'."""
    return [
        (not part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in re.split(r'(\d+)', name)
    ]


def _join_clips(video_id: str, clips: list[_Clip]) -> _Video:
    """Put the clips of one video together, each frame once."""
    clips = sorted(clips, key=lambda clip: clip.frame_idx)
    ends = {c.frame_idx + len(c.gt_phase) for c in clips if c.end_of_video}
    frames = np.concatenate(
        [c.frame_idx + np.arange(len(c.gt_phase)) for c in clips]
    )
    # The first of each frame: sorting is stable, so this does not depend on
    # anything but the order of the processes.
    unique, first, inverse = np.unique(
        frames, return_index=True, return_inverse=True
    )
    num_frames = int(unique[-1]) + 1
    if len(unique) < num_frames:
        missing = np.setdiff1d(np.arange(num_frames), unique)
        raise ValueError(
            f'video {video_id!r} has predictions for {len(unique)} of '
            f'{num_frames} frames; the first missing one is frame '
            f'{missing[0]}. Expected every frame of a video: evaluate whole '
            'videos, with the same clip length in dataset and sampler'
        )
    if ends != {num_frames}:
        told = 'was not seen' if not ends else f'is at frame {sorted(ends)}'
        raise ValueError(
            f'video {video_id!r} has predictions up to frame '
            f'{num_frames - 1}, but its end {told}. Expected every frame of a '
            'video, and each video under a name of its own'
        )
    gt_phase = np.concatenate([c.gt_phase for c in clips])
    contradicting = gt_phase != gt_phase[first][inverse]
    if contradicting.any():
        raise ValueError(
            f'frame {frames[contradicting][0]} of video {video_id!r} came '
            'twice with different annotations; expected each video under a '
            'name of its own'
        )
    scores = np.concatenate([c.scores for c in clips])[first]
    if not np.isfinite(scores).all():
        frame = int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
        raise ValueError(
            f'the model predicts NaN or infinity at frame {frame} of video '
            f'{video_id!r}; a diverged model has no score'
        )
    has_intensity = all(c.intensity is not None for c in clips)
    return _Video(
        gt_phase=gt_phase[first],
        pred_phase=np.concatenate([c.pred_phase for c in clips])[first],
        scores=scores,
        intensity=np.concatenate([c.intensity for c in clips])[first]
        if has_intensity
        else None,
    )
