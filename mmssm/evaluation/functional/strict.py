"""Strict frame-wise phase recognition scores, with every convention named.

A frame is right or wrong: no boundary is forgiven. What papers mean by "the"
precision or Jaccard of a test set still differs in two choices, which move
the number by several points and are explicit here: what to do with a phase
that a video does not have (:data:`Absent`), and in which order to average
(:data:`~mmssm.evaluation.functional.averaging.Order`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmssm.evaluation.functional.averaging import (
    MeanStd,
    Order,
    average_scores,
    check_choice,
    mean_over_axis,
    nan_mean_std,
)
from mmssm.evaluation.functional.confusion import confusion_matrix

Absent = Literal[
    'undefined', 'gt_absent', 'gt_absent_zero_unpredicted', 'zero'
]

#: Names of the phase-wise scores, in the order in which they are reported.
PHASE_SCORES = ('precision', 'recall', 'jaccard', 'f1')


@dataclasses.dataclass(frozen=True)
class StrictOptions:
    """Conventions of the strict protocol. The defaults are our headline.

    Args:
        absent (str): Score of a phase in a video where it is 0/0 or has no
            annotated frame. NaN means that the entry is left out of means.

            - 'undefined': only 0/0 is NaN; a phase that is predicted but not
              annotated scores 0 (precision, Jaccard, F1).
            - 'gt_absent': every score is NaN unless the phase is annotated in
              the video; precision also if it is never predicted. (The MATLAB
              scripts of the field.)
            - 'gt_absent_zero_unpredicted': the same, but an annotated phase
              that is never predicted has precision 0.
            - 'zero': 0/0 is 0, and every mean is over all phases: a perfect
              prediction scores below 100 where a phase is absent.

            Default: 'undefined'.
        order (str): 'phase_first' or 'video_first', see
            :func:`~mmssm.evaluation.functional.averaging.average_scores`;
            'pooled' adds the frames of all videos up first and then averages
            over phases, with the deviation over phases.
            Default: 'phase_first'.
        ignore_index (int): Annotation id of frames that are not scored.
            Default: -1.
        ddof (int): 1: sample standard deviations, 0: population ones.
            Default: 1.

    Raises:
        ValueError: If an option is unknown.
    """

    absent: Absent = 'undefined'
    order: Order = 'phase_first'
    ignore_index: int = -1
    ddof: int = 1

    def __post_init__(self) -> None:
        check_choice('absent', self.absent, Absent)
        check_choice('order', self.order, Order)
        if self.ddof not in (0, 1):
            raise ValueError(f'`ddof` is {self.ddof!r}; expected 0 or 1')

    def describe(self) -> str:
        """Name the protocol in one line, to be printed next to numbers."""
        std_over = 'videos' if self.order == 'video_first' else 'phases'
        kind = 'sample' if self.ddof else 'population'
        return (
            f'strict (no boundary relaxation), absent phases: {self.absent}, '
            f'averaging: {self.order}, std: {kind}, over videos for accuracy '
            f'and over {std_over} for phase scores'
        )


@dataclasses.dataclass(frozen=True)
class StrictScores:
    """Scores of a set of videos, in percent; NaN = undefined.

    Attributes:
        video_ids (tuple[str]): The videos, in the order of the rows below.
        counts (array): Frames ``(videos, phases, phases)``, see
            :func:`~mmssm.evaluation.functional.confusion.confusion_matrix`.
        accuracy (MeanStd): Mean and deviation over *videos* of the share of
            right frames.
        frame_accuracy (float): Share of right frames of all videos together.
        video_accuracy (array): ``(videos,)``.
        means (dict[str, MeanStd]): The averaged phase scores, by name.
        tables (dict[str, array]): Scores ``(videos, phases)``, by name.
        per_phase (dict[str, array]): Means ``(phases,)`` over videos (over
            all frames for order 'pooled'), by name.
        options (StrictOptions): The conventions used.
    """

    video_ids: tuple[str, ...]
    counts: NDArray
    accuracy: MeanStd
    frame_accuracy: float
    video_accuracy: NDArray
    means: dict[str, MeanStd]
    tables: dict[str, NDArray]
    per_phase: dict[str, NDArray]
    options: StrictOptions


def video_accuracy(counts: NDArray) -> float:
    """Share of right frames, in percent; NaN without labelled frames.

    Args:
        counts (array): Frames ``(phases, phases)`` by annotated and predicted
            phase.

    Returns:
        float: Accuracy.
    """
    total = counts.sum()
    if total == 0:
        return float('nan')
    return float(100.0 * np.trace(counts) / total)


def phase_scores(
    counts: NDArray, absent: Absent = 'undefined'
) -> dict[str, NDArray]:
    """Score every phase of one video (or of pooled videos).

    Precision is TP / (TP + FP), recall TP / (TP + FN), Jaccard
    TP / (TP + FP + FN) and F1 2 TP / (2 TP + FP + FN).

    Args:
        counts (array): Frames ``(phases, phases)`` by annotated and predicted
            phase.
        absent (str): See :class:`StrictOptions`. Default: 'undefined'.

    Returns:
        dict[str, array]: Scores ``(phases,)`` in percent, by name; NaN where
        undefined.

    Raises:
        ValueError: If ``absent`` is unknown.
    """
    check_choice('absent', absent, Absent)
    counts = np.asarray(counts, dtype=np.int64)
    tp = np.diagonal(counts)
    annotated, predicted = counts.sum(axis=1), counts.sum(axis=0)
    parts = {
        'precision': (tp, predicted),
        'recall': (tp, annotated),
        'jaccard': (tp, annotated + predicted - tp),
        'f1': (2 * tp, annotated + predicted),
    }
    scores = {}
    for name, (numerator, denominator) in parts.items():
        empty = 0.0 if absent == 'zero' else np.nan
        score = np.full(len(counts), empty)
        defined = denominator > 0
        score[defined] = 100.0 * numerator[defined] / denominator[defined]
        if absent.startswith('gt_absent'):
            score[annotated == 0] = np.nan
        scores[name] = score
    if absent == 'gt_absent_zero_unpredicted':
        scores['precision'][(annotated > 0) & (predicted == 0)] = 0.0
    return scores


def score_counts(
    counts: Mapping[str, NDArray], options: StrictOptions | None = None
) -> StrictScores:
    """Score a set of videos from their frame counts.

    Args:
        counts (Mapping[str, array]): Video id -> frames ``(phases, phases)``
            by annotated and predicted phase.
        options (StrictOptions, optional): Conventions. Default: the headline
            protocol.

    Returns:
        StrictScores: All scores, in percent.

    Raises:
        ValueError: If there is no video, a video has no labelled frame, or
            the videos disagree on the number of phases.
    """
    options = options or StrictOptions()
    if not counts:
        raise ValueError('`counts` is empty; expected at least one video')
    shapes = {np.shape(c) for c in counts.values()}
    if len(shapes) > 1:
        raise ValueError(
            f'`counts` has tables of shapes {sorted(shapes)}; expected the '
            'same phases in every video'
        )
    for video_id, table in counts.items():
        if np.sum(table) == 0:
            raise ValueError(
                f'video {video_id!r} has no labelled frame, so it has no '
                'score; leave it out'
            )
    stacked = np.stack([np.asarray(c, np.int64) for c in counts.values()])
    pooled = stacked.sum(axis=0)
    by_video = [phase_scores(c, options.absent) for c in stacked]
    tables = {
        name: np.stack([scores[name] for scores in by_video])
        for name in PHASE_SCORES
    }
    if options.order == 'pooled':
        per_phase = phase_scores(pooled, options.absent)
        means = {
            name: nan_mean_std(scores, options.ddof)
            for name, scores in per_phase.items()
        }
    else:
        per_phase = {n: mean_over_axis(t, axis=0) for n, t in tables.items()}
        means = {
            name: average_scores(table, options.order, options.ddof)
            for name, table in tables.items()
        }
    accuracies = np.array([video_accuracy(c) for c in stacked])
    return StrictScores(
        video_ids=tuple(counts),
        counts=stacked,
        accuracy=nan_mean_std(accuracies, options.ddof),
        frame_accuracy=video_accuracy(pooled),
        video_accuracy=accuracies,
        means=means,
        tables=tables,
        per_phase=per_phase,
        options=options,
    )


def score_videos(
    videos: Mapping[str, tuple[ArrayLike, ArrayLike]],
    num_classes: int,
    options: StrictOptions | None = None,
) -> StrictScores:
    """Score the predictions of a set of videos.

    Args:
        videos (Mapping[str, tuple]): Video id -> (annotated, predicted) phase
            ids, each ``(frames,)``.
        num_classes (int): Number of phases.
        options (StrictOptions, optional): Conventions. Default: the headline
            protocol.

    Returns:
        StrictScores: All scores, in percent.

    Raises:
        TypeError: If a sequence does not hold integers.
        ValueError: If a video is malformed or unlabelled, or there is none.

    Example:
        >>> scores = score_videos({'a': ([0, 0, 1, 1], [0, 1, 1, 1])}, 2)
        >>> scores.accuracy.mean, scores.means['recall'].mean
        (75.0, 75.0)
    """
    options = options or StrictOptions()
    counts = {
        video_id: confusion_matrix(
            gt, pred, num_classes, options.ignore_index, video_id
        )
        for video_id, (gt, pred) in videos.items()
    }
    return score_counts(counts, options)
