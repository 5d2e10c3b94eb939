"""Phases of a video over time, drawn as coloured ribbons."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator
from numpy.typing import ArrayLike, NDArray

from mmssm.evaluation.functional.atomic import replace_when_done

#: Colours that stay apart for readers who are colour-blind (Okabe-Ito first).
DEFAULT_PALETTE = (
    (86, 180, 233),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (0, 114, 178),
    (240, 228, 66),
    (213, 94, 0),
    (110, 110, 110),
    (148, 103, 189),
    (140, 86, 75),
    (188, 189, 34),
    (23, 190, 207),
)
_UNLABELLED = dict(facecolor='#eeeeee', edgecolor='#bbbbbb', hatch='////')
# Steps of the time axis that people count in, in seconds.
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
_MAX_TICKS = 11


def plot_timeline(
    ribbons: Mapping[str, ArrayLike],
    classes: Sequence[str],
    palette: Sequence[Sequence[int]] | None = None,
    fps: float = 1.0,
    probabilities: ArrayLike | None = None,
    intensity: ArrayLike | None = None,
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw the phases of one video as ribbons over a common time axis.

    Args:
        ribbons (Mapping[str, array]): Name ('ground truth', 'prediction') ->
            phase ids ``(frames,)``, drawn from top to bottom. -1 means not
            labelled and is hatched.
        classes (Sequence[str]): Names of the phases.
        palette (Sequence, optional): RGB colour (0..255) of every phase.
            Default: :data:`DEFAULT_PALETTE`.
        fps (float): Frames per second. Default: 1.0.
        probabilities (array, optional): ``(frames, phases)``, stacked in the
            colours of the phases, or ``(frames,)``, the probability of the
            predicted phase as a line. Default: None, not drawn.
        intensity (array, optional): Transition intensity lambda ``(frames,)``
            in 0..1. Default: None, not drawn.
        title (str, optional): Above the picture. Default: None.
        path (str or Path, optional): Picture to write, of the kind its suffix
            names; an older one stays until the new one is complete.
            Default: None, not written.

    Returns:
        Figure: The figure; pyplot does not know of it.

    Raises:
        ValueError: If there is no ribbon, a shape is wrong, a phase has no
            name or no colour, or ``fps`` is not positive.
    """
    if not fps > 0:
        raise ValueError(f'`fps` is {fps}; expected a positive number')
    tracks = _check_ribbons(ribbons, len(classes))
    colors = _check_palette(palette, len(classes))
    panels = [('ribbons', 0.42 * len(tracks))]
    if probabilities is not None:
        panels.append(('probabilities', 1.1))
    if intensity is not None:
        panels.append(('intensity', 1.1))
    heights = [height for _, height in panels]
    columns = min(len(classes), 4)
    legend_rows = -(-(len(classes) + 1) // columns)
    figure = Figure(
        figsize=(11, sum(heights) + 0.28 * legend_rows + 1.0),
        layout='constrained',
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(panels),
        1,
        sharex=True,
        squeeze=False,
        gridspec_kw=dict(height_ratios=heights),
    )[:, 0]
    _draw_ribbons(axes[0], tracks, colors, fps)
    for axis, (panel, _) in zip(axes[1:], panels[1:], strict=True):
        if panel == 'probabilities':
            _draw_probabilities(axis, probabilities, colors, fps)
        else:
            _draw_intensity(axis, intensity, fps)
    duration = max(len(ids) for ids in tracks.values()) / fps
    _set_time_axis(axes[-1], duration)
    if title is not None:
        axes[0].set_title(title, loc='left', fontsize=11)
    handles = [
        Patch(facecolor=color, edgecolor='none', label=name)
        for name, color in zip(classes, colors, strict=True)
    ]
    if any((ids < 0).any() for ids in tracks.values()):
        handles.append(Patch(label='not labelled', **_UNLABELLED))
    figure.legend(
        handles=handles,
        loc='outside lower center',
        ncols=columns,
        frameon=False,
        fontsize=9,
    )
    if path is not None:
        with replace_when_done(path) as temporary:
            figure.savefig(temporary, dpi=130)
    return figure


def _check_ribbons(
    ribbons: Mapping[str, ArrayLike], num_classes: int
) -> dict[str, NDArray]:
    if not ribbons:
        raise ValueError('`ribbons` is empty; expected at least one')
    tracks = {}
    for name, ids in ribbons.items():
        ids = np.asarray(ids)
        if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in 'iu':
            raise ValueError(
                f'ribbon {name!r} is {ids.dtype} of shape {ids.shape}; '
                'expected integer phase ids (frames,), at least one'
            )
        if ids.min() < -1 or ids.max() >= num_classes:
            raise ValueError(
                f'ribbon {name!r} holds phase ids {ids.min()}..{ids.max()}; '
                f'expected -1..{num_classes - 1}, as there are {num_classes} '
                '`classes`'
            )
        tracks[name] = ids
    return tracks


def _check_palette(
    palette: Sequence[Sequence[int]] | None, num_classes: int
) -> list[tuple[float, ...]]:
    if palette is None:
        palette = DEFAULT_PALETTE
    if len(palette) < num_classes:
        raise ValueError(
            f'`palette` has {len(palette)} colours for {num_classes} phases; '
            'expected one for each'
        )
    return [tuple(c / 255 for c in color) for color in palette[:num_classes]]


def _runs(ids: NDArray) -> list[tuple[int, int, int]]:
    """Split ids into runs: (first frame, length, id)."""
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
    lengths = np.diff(starts, append=len(ids))
    return [
        (int(s), int(n), int(ids[s]))
        for s, n in zip(starts, lengths, strict=True)
    ]


def _draw_ribbons(
    axis: Axes,
    tracks: dict[str, NDArray],
    colors: list[tuple[float, ...]],
    fps: float,
) -> None:
    for row, ids in enumerate(tracks.values()):
        for start, length, phase in _runs(ids):
            # A frame is shown from its time to that of the next one.
            style = (
                dict(facecolor=colors[phase], edgecolor='none')
                if phase >= 0
                else dict(_UNLABELLED, linewidth=0)
            )
            axis.broken_barh(
                [(start / fps, length / fps)], (row - 0.4, 0.8), **style
            )
    axis.set_yticks(range(len(tracks)), list(tracks))
    axis.set_ylim(len(tracks) - 0.5, -0.5)
    axis.tick_params(axis='y', length=0)
    axis.spines[['top', 'right', 'left']].set_visible(False)


def _draw_probabilities(
    axis: Axes,
    probabilities: ArrayLike,
    colors: list[tuple[float, ...]],
    fps: float,
) -> None:
    values = np.asarray(probabilities, dtype=np.float64)
    if values.ndim == 2 and values.shape[1] == len(colors) and len(values):
        # Steps: each frame keeps its values until the next one.
        held = np.concatenate([values, values[-1:]])
        seconds = np.arange(len(held)) / fps
        axis.stackplot(
            seconds, held.T, colors=colors, step='post', linewidth=0
        )
        axis.set_ylabel('probability\nof phases')
    elif values.ndim == 1 and len(values):
        _draw_curve(axis, values, fps, '#333333')
        axis.set_ylabel('probability of\nprediction')
    else:
        raise ValueError(
            f'`probabilities` has shape {values.shape}; expected (frames,) or '
            f'(frames, {len(colors)})'
        )
    _set_unit_axis(axis)


def _draw_intensity(axis: Axes, intensity: ArrayLike, fps: float) -> None:
    values = np.asarray(intensity, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f'`intensity` has shape {values.shape}; expected (frames,)'
        )
    _draw_curve(axis, values, fps, '#b2182b')
    axis.set_ylabel('transition\nintensity λ')
    _set_unit_axis(axis)


def _draw_curve(axis: Axes, values: NDArray, fps: float, color: str) -> None:
    held = np.append(values, values[-1])
    axis.step(
        np.arange(len(held)) / fps,
        held,
        where='post',
        color=color,
        linewidth=0.9,
    )


def _set_unit_axis(axis: Axes) -> None:
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 0.5, 1])
    axis.yaxis.label.set_size(9)
    axis.spines[['top', 'right']].set_visible(False)


def _set_time_axis(axis: Axes, duration: float) -> None:
    step = next(
        (s for s in _STEPS_S if duration / s <= _MAX_TICKS), _STEPS_S[-1]
    )
    axis.set_xlim(0, duration)
    axis.xaxis.set_major_locator(MultipleLocator(step))
    axis.xaxis.set_major_formatter(FuncFormatter(_minutes_seconds))
    axis.set_xlabel('time (mm:ss)')


def _minutes_seconds(seconds: float, _: int | None = None) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes:02d}:{rest:02d}'
