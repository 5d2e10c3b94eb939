"""Strict scores: a worked example, degenerate videos, golden numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmssm.evaluation.functional import (
    PHASE_SCORES,
    StrictOptions,
    average_scores,
    confusion_matrix,
    phase_scores,
    score_counts,
    score_videos,
)

DATA = Path(__file__).parents[1] / 'data' / 'golden'
GOLDEN_ABSENT = {
    'undefined': 'drop_undefined',
    'gt_absent': 'drop_gt_absent',
    'gt_absent_zero_unpredicted': 'drop_gt_absent_zero_unpredicted',
    'zero': 'zero_undefined',
}
GOLDEN_ORDER = {
    'phase_first': ('mean_phase_of_video_means', 'std_over_phases_sample'),
    'video_first': ('mean_video_of_phase_means', 'std_over_videos_sample'),
}


@pytest.fixture(scope='module')
def golden():
    path = DATA / 'metrics' / 'open_cholec80_edge.json'
    return json.loads(path.read_text())


def as_array(values):
    return np.array(values, dtype=np.float64)


def assert_close(actual, expected):
    np.testing.assert_allclose(
        as_array(actual), as_array(expected), rtol=0, atol=1e-9
    )


# Two videos of three phases, small enough for paper. Video a misses one of
# two frames of phase 0; video b has no phase 1 but predicts it once.
VIDEOS = {
    'a': ([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2]),
    'b': ([0, 0, 0, 2], [0, 0, 1, 2]),
}


def test_worked_example_undefined():
    scores = score_videos(VIDEOS, num_classes=3)
    assert scores.accuracy.mean == pytest.approx(100 * (5 / 6 + 3 / 4) / 2)
    assert scores.accuracy.std == pytest.approx(
        100 * abs(5 / 6 - 3 / 4) / math.sqrt(2)
    )
    assert scores.frame_accuracy == pytest.approx(80)
    # Precision a: 1, 2/3, 1; b: 1, 0 (phantom), 1.
    assert_close(
        scores.tables['precision'], [[100, 200 / 3, 100], [100, 0, 100]]
    )
    # Recall a: 1/2, 1, 1; b: 2/3, undefined, 1.
    assert_close(
        scores.tables['recall'], [[50, 100, 100], [200 / 3, np.nan, 100]]
    )
    # Jaccard a: 1/2, 2/3, 1; b: 2/3, 0, 1.  F1 a: 2/3, 4/5, 1; b: 4/5, 0, 1.
    assert_close(scores.per_phase['jaccard'], [700 / 12, 100 / 3, 100])
    assert_close(scores.per_phase['f1'], [100 * 11 / 15, 40, 100])
    # Phase first: recall of phase 1 is that of video a alone.
    assert scores.means['recall'].mean == pytest.approx(
        (700 / 12 + 100 + 100) / 3
    )


def test_worked_example_video_first():
    scores = score_videos(VIDEOS, 3, StrictOptions(order='video_first'))
    # Recall a: mean(1/2, 1, 1) = 5/6; b: mean(2/3, 1) = 5/6.
    assert scores.means['recall'].mean == pytest.approx(250 / 3)
    assert scores.means['recall'].std == pytest.approx(0)


@pytest.mark.parametrize(
    ('absent', 'precision', 'recall', 'jaccard'),
    [
        ('undefined', [100, 0, np.nan], [100, np.nan, 0], [100, 0, 0]),
        (
            'gt_absent',
            [100, np.nan, np.nan],
            [100, np.nan, 0],
            [100, np.nan, 0],
        ),
        (
            'gt_absent_zero_unpredicted',
            [100, np.nan, 0],
            [100, np.nan, 0],
            [100, np.nan, 0],
        ),
        ('zero', [100, 0, 0], [100, 0, 0], [100, 0, 0]),
    ],
)
def test_absent_conventions(absent, precision, recall, jaccard):
    # Phase 0 is right, phase 1 is a phantom, phase 2 is never predicted.
    counts = confusion_matrix([0, 0, 2], [0, 0, 1], num_classes=3)
    scores = phase_scores(counts, absent)
    assert_close(scores['precision'], precision)
    assert_close(scores['recall'], recall)
    assert_close(scores['jaccard'], jaccard)


@pytest.mark.parametrize(
    ('absent', 'expected'),
    [('undefined', 100), ('gt_absent', 100), ('zero', 100 / 3)],
)
def test_perfect_video_of_one_phase(absent, expected):
    scores = score_videos(
        {'a': ([1, 1, 1], [1, 1, 1])}, 3, StrictOptions(absent=absent)
    )
    assert scores.accuracy == (100, 0)
    for name in PHASE_SCORES:
        assert scores.means[name].mean == pytest.approx(expected)


def test_entirely_wrong_video():
    scores = score_videos({'a': ([0, 0], [1, 1])}, 3)
    assert scores.accuracy.mean == 0
    assert_close(scores.tables['precision'], [[np.nan, 0, np.nan]])
    assert_close(scores.tables['jaccard'], [[0, 0, np.nan]])


def test_ignore_index_drops_frames():
    labelled = score_videos({'a': ([0, 1, 1], [0, 1, 0])}, 2)
    gaps = score_videos({'a': ([-1, 0, -1, 1, 1], [1, 0, 1, 1, 0])}, 2)
    assert gaps.accuracy == labelled.accuracy
    assert gaps.means == labelled.means
    other = score_videos(
        {'a': ([0, 9, 1, 1], [0, 0, 1, 0])}, 2, StrictOptions(ignore_index=9)
    )
    assert other.accuracy == labelled.accuracy


def test_confusion_matrix_rows_are_annotated():
    counts = confusion_matrix([0, 0, 1, -1], [0, 1, 1, 0], num_classes=3)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ('gt', 'pred', 'error', 'message'),
    [
        ([0, 1], [0], ValueError, "video 'v' has 2 frames, `pred` has 1"),
        ([0, 3], [0, 0], ValueError, r'`gt` of .* holds phase id 3'),
        ([0, 1], [0, -1], ValueError, r'`pred` of .* holds phase id -1'),
        ([0.0, 1.0], [0, 1], TypeError, 'float64; expected integers'),
        ([[0, 1]], [[0, 1]], ValueError, r'shape \(1, 2\)'),
    ],
)
def test_malformed_sequences(gt, pred, error, message):
    with pytest.raises(error, match=message):
        score_videos({'v': (gt, pred)}, num_classes=3)


def test_videos_without_score_raise():
    with pytest.raises(ValueError, match='at least one video'):
        score_videos({}, 3)
    with pytest.raises(ValueError, match="'b' has no labelled frame"):
        score_videos({'a': ([0], [0]), 'b': ([-1, -1], [0, 1])}, 3)
    with pytest.raises(ValueError, match='same phases in every video'):
        score_counts({'a': np.eye(2), 'b': np.eye(3)})


@pytest.mark.parametrize(
    ('option', 'value'),
    [('absent', 'nan'), ('order', 'both'), ('ddof', 2)],
)
def test_unknown_options(option, value):
    with pytest.raises(ValueError, match=f'`{option}` is {value!r}'):
        StrictOptions(**{option: value})


def test_average_scores_orders_differ_with_gaps():
    table = np.array([[100.0, np.nan], [0.0, 50.0]])
    assert average_scores(table, 'phase_first').mean == 50
    assert average_scores(table, 'video_first').mean == 62.5
    assert average_scores(table, 'video_first', ddof=0).std == 37.5
    assert math.isnan(average_scores(np.full((2, 2), np.nan)).mean)
    with pytest.raises(ValueError, match='`order`'):
        average_scores(table, 'pooled')


@pytest.mark.parametrize('absent', GOLDEN_ABSENT)
@pytest.mark.parametrize('order', GOLDEN_ORDER)
def test_golden_aggregates(golden, absent, order):
    videos = {v['name']: (v['gt'], v['pred']) for v in golden['videos']}
    expected = golden['aggregate']['strict']
    scores = score_videos(
        videos, golden['num_phases'], StrictOptions(absent, order)
    )
    mean_key, std_key = GOLDEN_ORDER[order]
    for name in PHASE_SCORES:
        table = expected[GOLDEN_ABSENT[absent]][name]
        assert_close(scores.per_phase[name], table['per_phase'])
        assert_close(scores.means[name].mean, table[mean_key])
        assert_close(scores.means[name].std, table[std_key])
    assert_close(scores.accuracy.mean, expected['mean_accuracy'])
    assert_close(scores.accuracy.std, expected['std_accuracy_sample'])


def test_golden_pooled(golden):
    videos = {v['name']: (v['gt'], v['pred']) for v in golden['videos']}
    scores = score_videos(
        videos, golden['num_phases'], StrictOptions(order='pooled', ddof=0)
    )
    expected = golden['aggregate']['strict']
    assert_close(scores.frame_accuracy, expected['pooled_frames']['accuracy'])
    assert_close(scores.accuracy.std, expected['std_accuracy_pop'])
    for name in PHASE_SCORES:
        assert_close(scores.per_phase[name], expected['pooled_frames'][name])
        assert_close(
            scores.means[name].mean, np.mean(expected['pooled_frames'][name])
        )


def test_golden_videos(golden):
    for video in golden['videos']:
        counts = confusion_matrix(
            video['gt'], video['pred'], golden['num_phases']
        )
        tp = np.diagonal(counts)
        assert tp.tolist() == video['strict']['tp']
        assert (counts.sum(0) - tp).tolist() == video['strict']['fp']
        assert (counts.sum(1) - tp).tolist() == video['strict']['fn']
        scores = phase_scores(counts)
        for name in PHASE_SCORES:
            assert_close(scores[name], video['strict'][name])


@pytest.mark.parametrize(
    ('gt', 'pred', 'expected'),
    [
        ('labels', 'preds_metrics', 'metrics'),
        ('labels_absent', 'preds_absent', 'metrics_absent'),
    ],
)
def test_golden_surgical_mamba_log(gt, pred, expected):
    # Its training log: 0 for undefined, per video over phases.
    with np.load(DATA / 'surgical' / 'open_losses.npz') as data:
        labels = data[f'in/{gt}']
        labels = labels[0] if labels.ndim == 2 else labels
        predicted, measured = data[f'in/{pred}'], data[f'out/{expected}']
    scores = score_videos(
        {'v': (labels, predicted)}, 7, StrictOptions('zero', 'video_first')
    )
    means = [scores.means[n].mean for n in ('precision', 'recall', 'jaccard')]
    # Recorded in float32.
    np.testing.assert_allclose(
        np.array([scores.accuracy.mean, *means]) / 100, measured, atol=6e-8
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_agrees_with_sets_of_frames(frames):
    # The definitions, written over sets of frames instead of counts.
    gt, pred = (np.array(column) for column in zip(*frames, strict=True))
    scores = phase_scores(confusion_matrix(gt, pred, 4))
    for phase in range(4):
        annotated = set(np.flatnonzero(gt == phase))
        predicted = set(np.flatnonzero(pred == phase))
        both, either = annotated & predicted, annotated | predicted
        for name, total in [
            ('precision', len(predicted)),
            ('recall', len(annotated)),
            ('jaccard', len(either)),
        ]:
            value = 100 * len(both) / total if total else np.nan
            assert_close(scores[name][phase], value)
        total = len(annotated) + len(predicted)
        f1 = 200 * len(both) / total if total else np.nan
        assert_close(scores['f1'][phase], f1)
