"""Sample videos: what is drawn, and the files it is written to."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmssm.datasets import Cholec80Dataset
from mmssm.datasets.synthetic import (
    PhaseScript,
    SurgicalScene,
    read_sample_info,
    write_sample_videos,
)
from mmssm.datasets.synthetic import writer as writer_module
from mmssm.datasets.synthetic.tracks import presence, smooth_track
from mmssm.testing.sample_videos import make_tiny_videos

SCRIPT = PhaseScript([0, 1, 2, 3, 4, 5, 6], [6] * 7)


def scene(seed=0, size=64, script=SCRIPT):
    return SurgicalScene(script, np.random.SeedSequence(seed), size)


def files_of(root):
    return {
        path.relative_to(root): path.read_bytes()
        for path in sorted(Path(root).rglob('*'))
        if path.is_file() and path.suffix != '.mp4'
    }


@pytest.fixture
def short_scripts(monkeypatch):
    """Let the full writer run on videos of a few seconds."""
    monkeypatch.setattr(writer_module, 'draw_script', lambda rng: SCRIPT)
    monkeypatch.setattr(writer_module, 'is_hard_enough', lambda _: True)


def test_picture():
    picture = scene().draw(0)
    assert picture.shape == (64, 64, 3)
    assert picture.dtype == np.uint8
    # round field of view: bright in the middle, black corners
    assert picture[24:40, 24:40].mean() > 60
    corners = picture[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.max() < 20


def test_drawing_is_deterministic_in_any_order():
    a, b = scene(), scene()
    forward = [a.draw(tick) for tick in (0, 50, 100)]
    backward = [b.draw(tick) for tick in (100, 50, 0)][::-1]
    assert np.array_equal(forward, backward)
    assert not np.array_equal(scene(1).draw(0), forward[0])
    # 1-fps frames are pictures of the 5-fps video
    seconds = list(scene().frames(5))
    assert len(seconds) == len(SCRIPT)
    assert np.array_equal(seconds[10], forward[1])


def test_videos_differ_in_hue_and_light():
    means = np.array([scene(seed).draw(0).mean((0, 1)) for seed in range(12)])
    assert means.std(0).min() > 5


def test_movement_is_smooth():
    video = list(scene().frames())[::1]
    steps = [
        np.abs(a.astype(int) - b).mean()
        for a, b in zip(video, video[1:], strict=False)
    ]
    far = np.abs(video[0].astype(int) - video[-1]).mean()
    assert np.median(steps) < far / 2


@pytest.mark.parametrize('start', [0, 4])
def test_a_tool_is_there_from_the_first_second(start):
    times = np.arange(60) / 5
    level = presence(times, [(start, 8)])
    seconds = level[::5]
    expected = [float(start <= second < 8) for second in range(12)]
    assert seconds.tolist() == expected
    # and slides in between the seconds
    assert np.any((level > 0) & (level < 1))


def test_main_tools_enter_on_time():
    drawn = scene()
    for run, track in zip(SCRIPT.runs, drawn._main, strict=True):
        seconds = track['presence'][::5]
        assert seconds[run.start] == 1
        assert seconds[run.start : run.start + 5].min() == 1
        outside = np.delete(seconds, range(run.start, run.stop))
        assert outside.max() == 0


def test_tracks_do_not_depend_on_the_rate():
    curves = [
        smooth_track(np.random.default_rng(0), np.arange(0, 20, step), 3)
        for step in (1, 0.5)
    ]
    assert np.allclose(curves[0], curves[1][::2])


def test_layout_is_read_by_the_dataset(tiny_root):
    dataset = Cholec80Dataset(
        tiny_root, [1, 2, 3, 4], 16, frame_count_policy='error'
    )
    for video in dataset.videos:
        assert 20 <= len(video.frame_names) <= 40
        assert set(np.unique(video.phases)) <= set(range(7))
    rows = (tiny_root / 'phase_annotations' / 'video01-phase.txt').read_text()
    lines = rows.splitlines()
    assert lines[0] == 'Frame\tPhase'
    assert len(lines) == 1 + 25 * dataset.num_frames(0)
    assert dataset[0]['inputs'].shape[1:] == (16, 3, 32, 32)


@pytest.mark.parametrize('number', [3, 4])
def test_png_frames_are_the_pictures_of_the_mp4(tiny_root, number):
    capture = cv2.VideoCapture(
        str(tiny_root / f'videos/video{number:02d}.mp4')
    )
    assert capture.get(cv2.CAP_PROP_FPS) == 5
    pictures = []
    while True:
        more, picture = capture.read()
        if not more:
            break
        pictures.append(picture)
    paths = sorted((tiny_root / f'frames/video{number:02d}').iterdir())
    assert len(pictures) == 5 * len(paths)
    for path, picture in zip(paths, pictures[::5], strict=True):
        assert path.suffix == '.png'
        assert np.array_equal(cv2.imread(str(path)), picture)


def test_training_videos_are_jpeg_without_mp4(tiny_root):
    assert not (tiny_root / 'videos/video01.mp4').exists()
    suffixes = {p.suffix for p in (tiny_root / 'frames/video01').iterdir()}
    assert suffixes == {'.jpg'}


def test_tiny_videos_are_deterministic(tmp_path, tiny_root):
    again = make_tiny_videos(tmp_path / 'again')
    assert files_of(again) == files_of(tiny_root)
    more = make_tiny_videos(tmp_path / 'more', num_train=1, num_test=0)
    expected = {
        path: data
        for path, data in files_of(tiny_root).items()
        if 'video01' in str(path)
    }
    assert files_of(more) == expected
    other = make_tiny_videos(tmp_path / 'other', 1, 0, seed=1)
    assert files_of(other) != expected
    with pytest.raises(FileExistsError, match='not empty'):
        make_tiny_videos(tmp_path / 'again')
    with pytest.raises(ValueError, match='frames'):
        make_tiny_videos(tmp_path / 'short', frames=(5, 10))


@pytest.mark.parametrize('length', [12, 13, 20])
def test_shortened_scripts_keep_every_run(tmp_path, length):
    root = make_tiny_videos(
        tmp_path / 'data', 3, 0, frames=(length, length), seed=length
    )
    dataset = Cholec80Dataset(root, [1, 2, 3], 8)
    for video in range(3):
        assert dataset.num_frames(video) == length
        assert len(set(dataset.videos[video].phases.tolist())) >= 4


def test_writer(tmp_path, short_scripts):
    out = tmp_path / 'data'
    seen = []

    def progress(videos):
        for video in videos:
            assert not out.exists()
            seen.append(video)
            yield video

    write_sample_videos(out, 0, 2, 1, 32, progress=progress)
    assert [number for number, _ in seen] == [1, 2, 3]
    info = read_sample_info(out)
    assert info['train_videos'] == [1, 2]
    assert info['test_videos'] == [3]
    assert info['num_frames'] == {f'video0{i}': 42 for i in (1, 2, 3)}
    assert set(info['ceilings']) == {'frame', 'clip', 'video'}
    assert (info['seed'], info['size']) == (0, 32)
    assert [p.name for p in tmp_path.iterdir()] == ['data']
    first = files_of(out)
    again = write_sample_videos(tmp_path / 'again', 0, 2, 1, 32)
    assert files_of(again) == first
    Cholec80Dataset(out, info['train_videos'] + info['test_videos'], 8)


def test_writer_reuses_or_refuses(tmp_path, short_scripts):
    out = tmp_path / 'data'
    write_sample_videos(out, 0, 1, 1, 32)
    frame = out / 'frames' / 'video01' / '00000000.jpg'
    frame.write_bytes(b'mark')
    write_sample_videos(out, 0, 1, 1, 32)
    assert frame.read_bytes() == b'mark'
    with pytest.raises(FileExistsError, match='other sample videos'):
        write_sample_videos(out, 1, 1, 1, 32)
    write_sample_videos(out, 1, 1, 1, 32, force=True)
    assert read_sample_info(out)['seed'] == 1
    assert frame.read_bytes() != b'mark'
    foreign = tmp_path / 'mine'
    foreign.mkdir()
    (foreign / 'thesis.txt').write_text('precious')
    with pytest.raises(FileExistsError, match='not replaced'):
        write_sample_videos(foreign, 0, 1, 1, 32, force=True)
    assert (foreign / 'thesis.txt').read_text() == 'precious'


def test_interrupted_writing_leaves_nothing(tmp_path, short_scripts):
    def interrupt(videos):
        yield videos[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sample_videos(tmp_path / 'data', 0, 2, 1, 32, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ('arguments', 'match'),
    [
        (dict(size=33), 'even'),
        (dict(size=16), 'size'),
        (dict(num_test=0), 'num_test'),
        (dict(seed=-1), 'seed'),
    ],
)
def test_argument_errors(tmp_path, arguments, match):
    with pytest.raises(ValueError, match=match):
        write_sample_videos(tmp_path / 'data', **arguments)


def test_command_line(tmp_path, short_scripts, capsys):
    from tools.demo.make_sample_videos import main

    command = ['--num-train', '1', '--num-test', '1', '--size', '32']
    out = tmp_path / 'data'
    assert main(['--out', str(out), *command]) == 0
    text = capsys.readouterr().out
    assert '1 training and 1 test videos, 84 frames' in text.replace('\n', ' ')
    assert json.loads((out / 'sample_info.json').read_text())['seed'] == 0
    assert main(['--out', str(out), *command, '--seed', '2']) == 1
    assert '--force' in capsys.readouterr().err
    assert main(['--out', str(out), *command, '--seed', '2', '--force']) == 0
    assert main(['--out', str(tmp_path / 'b'), '--size', '31']) == 1
    assert 'error: `size`' in capsys.readouterr().err
