"""How per-video, per-phase scores become one number."""

import warnings
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Order = Literal['phase_first', 'video_first', 'pooled']


class MeanStd(NamedTuple):
    """A mean and a standard deviation, in the unit of the scores.

    Attributes:
        mean (float): NaN if nothing was defined.
        std (float): Over the entries that ``mean`` was taken of; 0 for a
            single one, NaN if nothing was defined.
    """

    mean: float
    std: float


def nan_mean_std(values: ArrayLike, ddof: int = 1) -> MeanStd:
    """Average the entries that are not NaN.

    Args:
        values (array): Scores of any shape; NaN = undefined.
        ddof (int): 1 for the sample standard deviation (the field's MATLAB
            scripts), 0 for the population one (its numpy scripts).
            Default: 1.

    Returns:
        MeanStd: Mean and standard deviation.
    """
    values = np.asarray(values, dtype=np.float64)
    values = values[~np.isnan(values)]
    if values.size == 0:
        return MeanStd(float('nan'), float('nan'))
    std = values.std(ddof=ddof) if values.size > ddof else 0.0
    return MeanStd(float(values.mean()), float(std))


def mean_over_axis(values: NDArray, axis: int) -> NDArray:
    """Average over one axis, leaving NaN out; NaN where nothing is left.

    Args:
        values (array): Scores of any shape; NaN = undefined.
        axis (int): Axis that is averaged.

    Returns:
        array: Means, without that axis.
    """
    with warnings.catch_warnings():
        # An entry that is undefined everywhere is expected: it stays NaN.
        warnings.filterwarnings('ignore', 'Mean of empty slice')
        return np.nanmean(np.asarray(values, dtype=np.float64), axis=axis)


def average_scores(
    scores: NDArray, order: Order = 'phase_first', ddof: int = 1
) -> MeanStd:
    """Average a table of scores over its videos and phases.

    The two orders are equal only when no entry is undefined.

    Args:
        scores (array): Scores ``(videos, phases)``; NaN = undefined, left
            out of every mean.
        order (str): 'phase_first' averages each phase over the videos, then
            the phases, and its deviation is over *phases* (what the MATLAB
            scripts of the field print). 'video_first' averages each video
            over its phases, then the videos; its deviation is over *videos*.
            Default: 'phase_first'.
        ddof (int): See :func:`nan_mean_std`. Default: 1.

    Returns:
        MeanStd: Mean and standard deviation.

    Raises:
        ValueError: If ``scores`` is not 2-D or ``order`` is unknown.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2:
        raise ValueError(
            f'`scores` has shape {scores.shape}; expected (videos, phases)'
        )
    if order not in ('phase_first', 'video_first'):
        raise ValueError(
            f"`order` is {order!r}; expected 'phase_first' or 'video_first'"
        )
    axis = 0 if order == 'phase_first' else 1
    return nan_mean_std(mean_over_axis(scores, axis), ddof)


def check_choice(name: str, value: str, choices: object) -> None:
    """Raise unless ``value`` is one of the strings of a Literal type.

    Args:
        name (str): Name of the argument, for the message.
        value (str): What was given.
        choices (Literal): The type that lists what is allowed.

    Raises:
        ValueError: If it is not.
    """
    if value not in get_args(choices):
        expected = ', '.join(repr(c) for c in get_args(choices))
        raise ValueError(f'`{name}` is {value!r}; expected one of {expected}')
