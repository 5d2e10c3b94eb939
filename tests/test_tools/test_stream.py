"""tools/stream.py and plot_timeline.py: the files they leave, however."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmssm.apis import StreamingSession
from mmssm.apis.video import SampledVideo
from mmssm.evaluation.functional import read_predictions, stack_predictions
from tests.test_apis.tiny_recognizer import (
    CLASSES,
    PALETTE,
    build_model,
    write_files,
)

TOOLS = Path(__file__).parents[2] / 'tools'


def write_video(path, seconds, fps=5):
    writer = cv2.VideoWriter(
        str(path), cv2.VideoWriter_fourcc(*'mp4v'), fps, (32, 24)
    )
    rng = np.random.default_rng(0)
    for _ in range(seconds * fps):
        color = rng.integers(0, 256, 3)
        writer.write(np.full((24, 32, 3), color, np.uint8))
    writer.release()


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp('stream')
    config, checkpoint = write_files(folder, build_model())
    video = folder / 'video01.mp4'
    write_video(video, seconds=12)
    return config, checkpoint, video


@pytest.fixture
def run_tool(monkeypatch, capsys):
    def run(script, *arguments):
        monkeypatch.setattr(sys, 'argv', [script, *map(str, arguments)])
        code = runpy.run_path(str(TOOLS / script))['main']()
        return code, capsys.readouterr()

    return run


@pytest.fixture
def stream(run_tool, files):
    config, checkpoint, video = files

    def run(*arguments, video=video):
        return run_tool(
            'stream.py',
            video,
            '--config',
            config,
            '--checkpoint',
            checkpoint,
            *arguments,
        )

    return run


def assert_is_timeline(path):
    image = cv2.imread(str(path))
    assert image is not None
    assert image.shape[1] > 1000
    # A phase of the palette covers a visible part of it (BGR).
    covered = [(image == color[::-1]).all(-1).mean() for color in PALETTE]
    assert max(covered) > 0.02


def test_predictions_are_those_of_the_session(stream, files, tmp_path):
    config, checkpoint, video = files
    code, output = stream('--out-dir', tmp_path)
    assert code == 0, output.err
    frames = read_predictions(tmp_path / 'video01.jsonl')
    session = StreamingSession.from_config(config, checkpoint)
    with SampledVideo(video, session.fps) as source:
        expected = [session.step(f.image) for f in source]
    assert len(expected) == 12
    streamed = stack_predictions(frames)
    assert (
        streamed.probabilities == np.stack([r.probabilities for r in expected])
    ).all()
    assert streamed.phase.tolist() == [r.phase for r in expected]
    assert streamed.time_s.tolist() == list(range(12))
    assert [f.phase_name for f in frames] == [r.phase_name for r in expected]
    np.testing.assert_array_equal(
        streamed.intensity, np.float32([r.intensity for r in expected])
    )
    assert streamed.gt_phase is None
    assert_is_timeline(tmp_path / 'video01_timeline.png')
    assert '12 frames, median latency' in output.out


def test_annotations_are_compared(stream, tmp_path):
    rows = ''.join(
        f'{i}\t{CLASSES[i // 100]}\n' for i in range(250)
    )  # 10 seconds at 25 rows per second, 2 less than the video
    gt = tmp_path / 'video01-phase.txt'
    gt.write_text('Frame\tPhase\n' + rows)
    code, output = stream(
        '--out-dir', tmp_path, '--gt', gt, '--video-id', 'other'
    )
    assert code == 0, output.err
    video = stack_predictions(read_predictions(tmp_path / 'other.jsonl'))
    assert video.gt_phase.tolist() == [0] * 4 + [1] * 4 + [2] * 2 + [-1] * 2
    right = 100 * (video.phase == video.gt_phase)[:10].mean()
    assert f'accuracy {right:.2f} % of 10 annotated' in output.out
    assert 'warning' not in output.err
    assert_is_timeline(tmp_path / 'other_timeline.png')


def test_annotations_of_another_rate_are_noticed(stream, tmp_path):
    gt = tmp_path / 'video01-phase.txt'
    gt.write_text(''.join(f'{i}\t{CLASSES[0]}\n' for i in range(12)))
    options = ('--out-dir', tmp_path, '--gt', gt)
    code, output = stream(*options)
    assert code == 0
    assert 'has 12 frames' in output.err
    assert 'has 1 labels at --gt-fps 25' in output.err
    # A part of the video says nothing.
    code, output = stream(*options, '--max-frames', 6)
    assert (code, output.err) == (0, '')
    code, output = stream(*options, '--gt-fps', 1)
    assert (code, output.err) == (0, '')


def test_failure_on_the_way_still_draws(stream, monkeypatch, tmp_path):
    retrieve = SampledVideo._retrieve

    def break_at_two_seconds(self, source_idx, time_s):
        if time_s >= 2:
            raise ValueError(f'frame {source_idx} cannot be decoded')
        return retrieve(self, source_idx, time_s)

    monkeypatch.setattr(SampledVideo, '_retrieve', break_at_two_seconds)
    code, output = stream('--out-dir', tmp_path)
    assert code == 1
    assert 'error: frame 10 cannot be decoded' in output.err
    assert '2 frames, median latency' in output.out
    assert len(read_predictions(tmp_path / 'video01.jsonl')) == 2
    assert_is_timeline(tmp_path / 'video01_timeline.png')


def test_config_options(stream, tmp_path):
    code, output = stream(
        '--out-dir', tmp_path, '--cfg-options', 'test_dataloader.dataset.fps=5'
    )
    assert code == 0, output.err
    assert len(read_predictions(tmp_path / 'video01.jsonl')) == 60


def test_no_checkpoint(run_tool, files, tmp_path):
    config, _, video = files
    text = tmp_path / 'text.mp4'
    text.write_text('hello\n')
    options = ('--config', config, '--checkpoint', text)
    code, output = run_tool('stream.py', video, *options)
    assert code == 1
    assert f'{text} cannot be read as a checkpoint' in output.err
    converter = 'model_converters/surgical_mamba_to_mmssm.py'
    with pytest.raises(SystemExit, match=r'text\.mp4 cannot be read as a'):
        run_tool(converter, text, tmp_path / 'out.pth')
    with pytest.raises(SystemExit, match=r'no checkpoint at .*none\.pth'):
        run_tool(converter, tmp_path / 'none.pth', tmp_path / 'out.pth')


def test_max_frames(stream, tmp_path):
    code, _ = stream('--out-dir', tmp_path, '--max-frames', 3)
    assert code == 0
    assert len(read_predictions(tmp_path / 'video01.jsonl')) == 3


def test_video_fps_overrides_the_container(stream, tmp_path):
    code, _ = stream('--out-dir', tmp_path, '--video-fps', 10)
    assert code == 0
    assert len(read_predictions(tmp_path / 'video01.jsonl')) == 6


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--max-frames', 0], '`--max-frames` is 0'),
        (['--video-id', 'a/b'], 'without path separators'),
        (['--video-id', '..'], 'without path separators'),
        (['--video-fps', 0.5], 'at least the 1 of the model'),
        (['--gt', 'no-phase.txt'], 'annotation file not found'),
        (['--gt', 'no-phase.txt', '--gt-fps', 0], '`--gt-fps` is 0'),
    ],
)
def test_bad_options(stream, tmp_path, arguments, message):
    code, output = stream('--out-dir', tmp_path, *arguments)
    assert code == 1
    assert message in output.err
    assert 'Traceback' not in output.err


def test_unreadable_video(stream, tmp_path):
    code, output = stream(
        '--out-dir', tmp_path, video=tmp_path / 'missing.mp4'
    )
    assert code == 1
    assert 'error: video not found' in output.err
    text = tmp_path / 'text.mp4'
    text.write_text('no video')
    code, output = stream('--out-dir', tmp_path, video=text)
    assert code == 1
    assert 'as a video; is it complete' in output.err
    assert not list(tmp_path.glob('*.jsonl'))


def test_ctrl_c_leaves_valid_files(files, tmp_path):
    config, checkpoint, _ = files
    video = tmp_path / 'long.mp4'
    write_video(video, seconds=20_000, fps=1)
    process = subprocess.Popen(
        [
            sys.executable,
            TOOLS / 'stream.py',
            video,
            '--config',
            config,
            '--checkpoint',
            checkpoint,
            '--out-dir',
            tmp_path,
        ],
        # Runs from a checkout that is not installed, too.
        env={**os.environ, 'PYTHONPATH': str(TOOLS.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    predictions = tmp_path / 'long.jsonl'
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            # Lines are there while it runs: they are flushed.
            if predictions.exists() and predictions.stat().st_size > 2000:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert 'interrupted' in out
    lines = predictions.read_text().splitlines()
    assert 10 <= len(lines) < 20_000
    assert [json.loads(line)['frame_idx'] for line in lines] == list(
        range(len(lines))
    )
    assert_is_timeline(tmp_path / 'long_timeline.png')
    assert not list(tmp_path.glob('.*'))


def test_plot_timeline(stream, run_tool, files, tmp_path):
    for name in ('a', 'b'):
        stream('--out-dir', tmp_path / name)
    paths = [tmp_path / name / 'video01.jsonl' for name in ('a', 'b')]
    script = 'analysis_tools/plot_timeline.py'
    code, output = run_tool(script, *paths, '--config', files[0])
    assert code == 0, output.err
    assert_is_timeline(tmp_path / 'a' / 'video01_timeline.png')

    out = tmp_path / 'single.png'
    code, _ = run_tool(
        script, paths[0], '--out', out, '--probabilities', 'predicted'
    )
    assert code == 0
    assert cv2.imread(str(out)) is not None

    stream('--out-dir', tmp_path, '--video-id', 'other')
    code, output = run_tool(script, paths[0], tmp_path / 'other.jsonl')
    assert code == 1
    assert 'different videos (other, video01)' in output.err
    code, output = run_tool(script, *paths, '--labels', 'x', 'x')
    assert code == 1
    assert 'expected 2 different names' in output.err
    code, output = run_tool(script, tmp_path / 'none.jsonl')
    assert code == 1
    assert 'error: prediction file not found: ' in output.err
    assert 'none.jsonl' in output.err
