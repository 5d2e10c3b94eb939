"""The phase timeline: what is drawn where."""

import os

import cv2
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from mmssm.visualization import plot_timeline

CLASSES = ('Enter', 'Cut', 'Leave')
PALETTE = [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
GT = np.array([0] * 60 + [1] * 120 + [2] * 60)
PRED = np.array([0] * 70 + [1] * 100 + [2] * 70)


def bars(axis):
    """List (row, start, length, colour) of all bars."""
    result = []
    for collection in axis.collections:
        (x0, y0), (x1, y1) = collection.get_datalim(
            axis.transData
        ).get_points()
        color = to_rgb(collection.get_facecolor()[0])
        result.append((round((y0 + y1) / 2), x0, x1 - x0, color))
    return result


def test_ribbons_are_aligned_and_coloured():
    ribbons = {'ground truth': GT, 'prediction': PRED}
    figure = plot_timeline(ribbons, CLASSES, PALETTE, fps=2)
    (axis,) = figure.axes
    red, green, blue = ((1, 0, 0), (0, 128 / 255, 0), (0, 0, 1))
    assert bars(axis) == [
        (0, 0, 30, red),
        (0, 30, 60, green),
        (0, 90, 30, blue),
        (1, 0, 35, red),
        (1, 35, 50, green),
        (1, 85, 35, blue),
    ]
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ['ground truth', 'prediction']
    # The first ribbon is on top.
    assert axis.get_ylim()[0] > axis.get_ylim()[1]
    assert axis.get_xlim() == (0, 120)


def test_axes_and_legend_are_labelled():
    figure = plot_timeline(
        {'prediction': PRED},
        CLASSES,
        probabilities=np.full((240, 3), 1 / 3),
        intensity=np.linspace(0, 1, 240),
        title='video41',
    )
    ribbon, probability, intensity = figure.axes
    assert ribbon.get_title(loc='left') == 'video41'
    assert intensity.get_xlabel() == 'time (mm:ss)'
    assert 'probability' in probability.get_ylabel()
    assert 'λ' in intensity.get_ylabel()
    figure.canvas.draw()
    ticks = [t.get_text() for t in intensity.get_xticklabels()]
    assert {'00:00', '01:00', '03:30', '04:00'} <= set(ticks)
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == list(CLASSES)
    # Panels share the time axis.
    assert ribbon.get_xlim() == probability.get_xlim() == (0, 240)


def test_curves_hold_their_values():
    figure = plot_timeline(
        {'prediction': PRED[:2]},
        CLASSES,
        probabilities=[0.5, 0.9],
        intensity=[0.1, 0.3],
    )
    for axis, values in zip(
        figure.axes[1:], ([0.5, 0.9, 0.9], [0.1, 0.3, 0.3]), strict=True
    ):
        (line,) = axis.get_lines()
        assert line.get_ydata().tolist() == values
        assert line.get_xdata().tolist() == [0, 1, 2]


def test_unlabelled_frames_are_shown():
    ids = np.array([-1, -1, 0, 0, -1])
    figure = plot_timeline({'ground truth': ids}, CLASSES)
    assert [bar[1:3] for bar in bars(figure.axes[0])] == [
        (0, 2),
        (2, 2),
        (4, 1),
    ]
    (legend,) = figure.legends
    assert legend.get_texts()[-1].get_text() == 'not labelled'


@pytest.mark.parametrize('frames', [1, 3, 100, 5000, 40_000])
def test_number_of_ticks_is_bounded(frames):
    figure = plot_timeline({'a': np.zeros(frames, np.int64)}, CLASSES)
    figure.canvas.draw()
    texts = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert len(texts) == len(set(texts)) <= 14
    assert '00:00' in texts


def test_picture_is_written_whole(tmp_path):
    path = tmp_path / 'new' / 'timeline.png'
    plot_timeline({'a': PRED}, CLASSES, PALETTE, path=path)
    image = cv2.imread(str(path))
    assert image.shape[1] > 1000
    # All three colours of the palette are there (BGR).
    for color in PALETTE:
        assert (image == color[::-1]).all(-1).mean() > 0.01
    assert os.listdir(path.parent) == ['timeline.png']
    before = path.read_bytes()
    with pytest.raises(ValueError, match='Format'):
        plot_timeline({'a': GT}, CLASSES, path=tmp_path / 'a.nosuch')
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ['new']


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (dict(ribbons={}), '`ribbons` is empty'),
        (dict(ribbons={'a': [0.0, 1.0]}), "'a' is float64 of shape"),
        (dict(ribbons={'a': np.zeros(0, np.int64)}), 'at least one'),
        (dict(ribbons={'a': [0, 3]}), r'ids 0\.\.3; expected -1\.\.2'),
        (dict(palette=PALETTE[:2]), 'has 2 colours for 3 phases'),
        (dict(fps=0), '`fps` is 0'),
        (dict(probabilities=np.zeros((2, 4))), r'\(2, 4\); expected'),
        (dict(intensity=np.zeros((2, 2))), r'\(2, 2\); expected \(frames,\)'),
    ],
)
def test_bad_arguments(changes, message):
    arguments = dict(ribbons={'a': [0, 1]}, classes=CLASSES)
    with pytest.raises(ValueError, match=message):
        plot_timeline(**{**arguments, **changes})
