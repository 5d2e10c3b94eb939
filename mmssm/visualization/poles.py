"""Memory horizons over an image, and poles in the unit disk."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from mmssm.analysis.pole_maps import PoleMap, Poles
from mmssm.evaluation.functional.atomic import replace_when_done

# Where the range is wider, differences among short horizons would not show.
_WIDEST_LINEAR_RANGE = 8.0
_MAX_CLOUD = 20_000
_MAX_COLUMNS = 7
_COLORS = 'viridis'
# Apart from the colours of the maps, and from each other in shape too; the
# last one is a frame, as it is often around one of the others.
_MARKERS = {
    'longest memory': dict(
        marker='^', markersize=9, markerfacecolor='#ff2d55'
    ),
    'fastest decay': dict(marker='v', markersize=9, markerfacecolor='white'),
    'strongest oscillation': dict(
        marker='s',
        markersize=15,
        markerfacecolor='none',
        markeredgecolor='#ff9500',
        markeredgewidth=2.5,
    ),
}


def plot_layer(
    image: NDArray,
    maps: Sequence[PoleMap],
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw one layer: image, maps of the memory horizon, poles.

    Args:
        image (ndarray): The image that the backbone saw, uint8 RGB
            ``(height, width, 3)`` or grey ``(height, width)``.
        maps (Sequence[PoleMap]): Both directions, or one.
        title (str, optional): Above the picture. Default: None.
        path (str or Path, optional): Picture to write; an older one stays
            until the new one is complete. Default: None, not written.

    Returns:
        Figure: The figure; pyplot does not know of it.
    """
    norm = _common_norm(maps)
    columns = 1 + len(maps)
    aspect = np.clip(image.shape[0] / image.shape[1], 0.4, 2.0)
    figure = Figure(
        figsize=(3.6 * columns + 1.2, 3.4 * aspect + 4.4),
        layout='constrained',
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        2,
        columns,
        squeeze=False,
        gridspec_kw=dict(height_ratios=[3.4 * aspect, 3.6]),
    )
    _draw_image(axes[0, 0], image)
    axes[0, 0].set_title('image as the model sees it', fontsize=10)
    for axis, disk, pole_map in zip(
        axes[0, 1:], axes[1, 1:], maps, strict=True
    ):
        _draw_map(axis, image, pole_map, norm)
        _draw_landmarks(axis, image, pole_map)
        axis.set_title(f'{pole_map.direction} scan', fontsize=10)
        _draw_disk(disk, pole_map, norm)
        disk.set_title(f'poles, {pole_map.direction} scan', fontsize=10)
    _draw_legend(axes[1, 0], maps)
    _add_colorbar(figure, axes[:, -1], norm)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return _finish(figure, path)


def plot_horizons(
    image: NDArray,
    maps: Sequence[PoleMap],
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Draw the memory horizons of many layers in one scale.

    Args:
        image (ndarray): As for :func:`plot_layer`.
        maps (Sequence[PoleMap]): Of any layers.
        title (str, optional): Above the picture. Default: None.
        path (str or Path, optional): As for :func:`plot_layer`.

    Returns:
        Figure: The figure; pyplot does not know of it.
    """
    directions = list(dict.fromkeys(m.direction for m in maps))
    layers = list(dict.fromkeys(m.layer for m in maps))
    found = {(m.layer, m.direction): m for m in maps}
    norm = _common_norm(maps)
    # The image has the first place.
    columns = min(len(layers) + 1, _MAX_COLUMNS)
    lines = -(-(len(layers) + 1) // columns)
    aspect = np.clip(image.shape[0] / image.shape[1], 0.4, 2.0)
    height = 0.4 + (1.8 * aspect + 0.25) * lines * len(directions)
    figure = Figure(
        figsize=(1.9 * columns + 1.4, height + 0.5), layout='constrained'
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        lines * len(directions), columns, squeeze=False
    ).reshape(lines, len(directions), columns)
    for axis in axes.flat:
        axis.set_axis_off()
    _draw_image(axes[0, 0, 0], image)
    for place, layer in enumerate(layers, 1):
        line, column = divmod(place, columns)
        for row, direction in enumerate(directions):
            pole_map = found.get((layer, direction))
            if pole_map is None:
                continue
            axis = axes[line, row, column]
            _draw_map(axis, image, pole_map, norm)
            axis.set_title(f'{layer}, {direction}', fontsize=8, pad=2)
    _add_colorbar(figure, axes.ravel(), norm)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return _finish(figure, path)


def _finish(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        with replace_when_done(path) as temporary:
            figure.savefig(temporary, dpi=130)
    return figure


def _common_norm(maps: Sequence[PoleMap]) -> Normalize:
    """Scale of the horizons of all maps."""
    values = np.concatenate([m.horizon.numpy().ravel() for m in maps])
    values = values[np.isfinite(values) & (values > 0)]
    low, high = (values.min(), values.max()) if len(values) else (1.0, 1.0)
    if high - low < 1e-6 * high:  # the same everywhere
        return Normalize(0.9 * low, 1.1 * high)
    if high / low > _WIDEST_LINEAR_RANGE:
        return LogNorm(low, high)
    return Normalize(low, high)


def _add_colorbar(figure: Figure, axes: NDArray, norm: Normalize) -> None:
    bar = figure.colorbar(
        ScalarMappable(norm, _COLORS), ax=axes.tolist(), pad=0.02, aspect=40
    )
    bar.set_label('memory horizon of the slowest pole (tokens)', fontsize=9)
    if isinstance(norm, LogNorm):
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter('{x:g}'))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())


def _draw_image(axis: Axes, image: NDArray) -> None:
    axis.imshow(image, cmap='gray', vmin=0, vmax=255, aspect='equal')
    axis.set_axis_off()


def _draw_map(
    axis: Axes, image: NDArray, pole_map: PoleMap, norm: Normalize
) -> None:
    height, width = image.shape[:2]
    axis.imshow(
        pole_map.horizon.numpy(),
        cmap=_COLORS,
        norm=norm,
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        interpolation='nearest',
    )
    axis.set_axis_off()


def _draw_landmarks(axis: Axes, image: NDArray, pole_map: PoleMap) -> None:
    height, width = image.shape[:2]
    rows, columns = pole_map.horizon.shape
    for name, (row, column) in pole_map.landmarks().items():
        axis.plot(
            (column + 0.5) * width / columns - 0.5,
            (row + 0.5) * height / rows - 0.5,
            linestyle='',
            **{'markeredgecolor': 'black', **_MARKERS[name]},
        )


def _to_plane(poles: Poles) -> NDArray:
    """All poles as complex numbers, in the layout of ``poles.radii()``."""
    pairs = poles.rho.numpy() * np.exp(1j * poles.theta.numpy())
    return np.concatenate((poles.real.numpy() + 0j, pairs), axis=-1)


def _draw_disk(axis: Axes, pole_map: PoleMap, norm: Normalize) -> None:
    """Poles of tokens as a cloud, base poles on top of it."""
    axis.add_patch(Circle((0, 0), 1, fill=False, color='black', linewidth=1))
    for radius in (0.25, 0.5, 0.75):
        axis.add_patch(
            Circle((0, 0), radius, fill=False, color='#dddddd', linewidth=0.6)
        )
    axis.axhline(0, color='#dddddd', linewidth=0.6, zorder=0)
    axis.axvline(0, color='#dddddd', linewidth=0.6, zorder=0)
    cloud = _to_plane(pole_map.tokens).ravel()
    horizons = pole_map.tokens.horizons().numpy().ravel()
    # Every nth: the same picture each time.
    step = -(-len(cloud) // _MAX_CLOUD)
    cloud, horizons = cloud[::step], horizons[::step]
    for points in (cloud, cloud.conj()):
        axis.scatter(
            points.real,
            points.imag,
            s=3,
            c=horizons,
            cmap=_COLORS,
            norm=norm,
            linewidths=0,
            alpha=0.6,
            rasterized=True,
        )
    base = _to_plane(pole_map.base).ravel()
    for points in (base, base.conj()):
        axis.plot(points.real, points.imag, 'x', color='#c00000', markersize=4)
    axis.set_xlim(-1.08, 1.08)
    axis.set_ylim(-1.08, 1.08)
    axis.set_aspect('equal')
    axis.set_xticks([-1, 0, 1])
    axis.set_yticks([-1, 0, 1])
    axis.tick_params(labelsize=8)
    axis.spines[['top', 'right']].set_visible(False)


def _draw_legend(axis: Axes, maps: Sequence[PoleMap]) -> None:
    axis.set_axis_off()
    present = {name for m in maps for name in m.landmarks()}
    handles = [
        Line2D(
            [],
            [],
            linestyle='',
            label=name,
            **{'markeredgecolor': 'black', **style},
        )
        for name, style in _MARKERS.items()
        if name in present
    ]
    handles += [
        Line2D(
            [],
            [],
            linestyle='',
            marker='x',
            color='#c00000',
            label='base poles',
        ),
        Line2D(
            [],
            [],
            linestyle='',
            marker='.',
            color='#21918c',
            label='poles of the tokens',
        ),
    ]
    note = None if present else 'all tokens have the same poles'
    axis.legend(
        handles=handles,
        title=note,
        loc='center',
        frameon=False,
        fontsize=10,
        labelspacing=0.8,
    )
