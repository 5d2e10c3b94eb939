"""Prediction files: nothing lost, nothing half written."""

import json
import os

import numpy as np
import pytest

from mmssm.evaluation.functional import (
    FramePrediction,
    PredictionWriter,
    read_predictions,
    stack_predictions,
    write_predictions,
)


def make_frame(index, **changes):
    fields = dict(
        video_id='video41',
        frame_idx=index,
        time_s=float(index),
        phase=1,
        phase_name='Préparation',
        probabilities=np.array([0.1, 0.7, 0.2], np.float32),
        intensity=np.float32(0.3),
        gt_phase=1,
    )
    return FramePrediction(**{**fields, **changes})


def test_round_trip_keeps_float32(tmp_path):
    path = tmp_path / 'new' / 'video41.jsonl'
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(3), size=50).astype(np.float32)
    write_predictions(
        path, [make_frame(i, probabilities=p) for i, p in enumerate(scores)]
    )
    frames = read_predictions(path)
    video = stack_predictions(frames)
    # The first frame is there (no header is skipped) and every bit is back.
    assert video.frame_idx.tolist() == list(range(50))
    assert video.probabilities.dtype == np.float32
    assert (video.probabilities == scores).all()
    assert (video.intensity == np.float32(0.3)).all()
    assert video.gt_phase.tolist() == [1] * 50
    assert frames[0].phase_name == 'Préparation'


def test_line_format(tmp_path):
    path = tmp_path / 'a.jsonl'
    write_predictions(path, [make_frame(3, intensity=None, gt_phase=None)])
    assert json.loads(path.read_text(encoding='utf-8')) == {
        'video_id': 'video41',
        'frame_idx': 3,
        'time_s': 3.0,
        'phase': 1,
        'phase_name': 'Préparation',
        'probabilities': [0.1, 0.7, 0.2],
        'intensity': None,
    }
    write_predictions(path, [make_frame(0, intensity=None, gt_phase=None)])
    video = stack_predictions(read_predictions(path))
    assert video.intensity is None
    assert video.gt_phase is None


def test_writer_flushes_every_line(tmp_path):
    path = tmp_path / 'a.jsonl'
    with PredictionWriter(path) as writer:
        writer.write(make_frame(0))
        assert len(read_predictions(path)) == 1
        writer.write(make_frame(1))
        assert len(read_predictions(path)) == 2
    with pytest.raises(ValueError, match='closed'):
        writer.write(make_frame(2))


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / 'a.jsonl'
    write_predictions(path, [make_frame(0)])
    before = path.read_bytes()
    bad = make_frame(1, probabilities=[0.5, float('nan'), 0.5])
    with pytest.raises(ValueError, match="frame 1 of video 'video41' has a N"):
        write_predictions(path, [make_frame(0), bad])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ['a.jsonl']


@pytest.mark.parametrize('cut', [1, 5, 60])
def test_cut_off_last_line(tmp_path, cut):
    path = tmp_path / 'a.jsonl'
    write_predictions(path, [make_frame(i) for i in range(3)])
    path.write_bytes(path.read_bytes()[: -cut - 1])
    with pytest.warns(UserWarning, match=r'cut off .*a\.jsonl:3'):
        frames = read_predictions(path)
    assert [f.frame_idx for f in frames] == [0, 1]


def test_last_line_without_newline_counts(tmp_path):
    path = tmp_path / 'a.jsonl'
    write_predictions(path, [make_frame(i) for i in range(3)])
    path.write_bytes(path.read_bytes().rstrip())
    assert len(read_predictions(path)) == 3


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('{"video_id": "a"', 'not a JSON object'),
        ('[1, 2]', 'holds a list; expected an object'),
        ('{"video_id": "a"}', '`frame_idx` is missing'),
        (
            make_frame(0).to_json().replace('"phase": 1', '"phase": "1"'),
            "`phase` is '1'; expected int",
        ),
    ],
)
def test_malformed_line_is_located(tmp_path, line, message):
    path = tmp_path / 'a.jsonl'
    path.write_text(f'{make_frame(0).to_json()}\n{line}\n', encoding='utf-8')
    with pytest.raises(ValueError, match=rf'a\.jsonl:2: .*{message}'):
        read_predictions(path)


def test_empty_file(tmp_path):
    path = tmp_path / 'a.jsonl'
    path.touch()
    assert read_predictions(path) == []
    with pytest.raises(ValueError, match='at least one frame'):
        stack_predictions([])


def test_missing_file_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r'prediction file not found: .*no\.jsonl'
    ):
        read_predictions(tmp_path / 'no.jsonl')


@pytest.mark.parametrize(
    ('indices', 'message'),
    [
        ([0, 1, 4, 5], 'frame 2 is missing; expected the frames from 0 to 5'),
        ([1, 2], 'frame 0 is missing'),
        ([0, 0, 1], 'frame 0 stands where frame 1 should'),
        ([0, 2, 1], 'frame 2 stands where frame 1 should'),
    ],
)
def test_stack_needs_every_frame_in_order(indices, message):
    with pytest.raises(ValueError, match=f"video 'video41': {message}"):
        stack_predictions([make_frame(i) for i in indices])


def test_stack_needs_one_video():
    with pytest.raises(ValueError, match='several videos'):
        stack_predictions([make_frame(0), make_frame(1, video_id='b')])
    with pytest.raises(ValueError, match='the same number everywhere'):
        stack_predictions([make_frame(0), make_frame(1, probabilities=[1.0])])
