"""Which frames of a video the model gets to see."""

import itertools

import cv2
import numpy as np
import pytest

from mmssm.apis.video import SampledVideo


class FakeCapture:
    """What OpenCV gives for a file; the blue value tells the frame."""

    frame_count = 100
    fps = 25.0
    told_count = None
    is_open = True

    def __init__(self, source):
        self.position = -1

    def isOpened(self):  # noqa: N802
        return self.is_open

    def get(self, prop):
        if prop == cv2.CAP_PROP_FPS:
            return self.fps
        assert prop == cv2.CAP_PROP_FRAME_COUNT
        told = self.told_count
        return float(self.frame_count if told is None else told)

    def grab(self):
        self.position += 1
        return self.position < self.frame_count

    def retrieve(self):
        image = np.zeros((2, 2, 3), np.uint8)
        image[..., 0] = self.position
        return True, image

    def release(self):
        pass


@pytest.fixture
def make_video(tmp_path, monkeypatch):
    path = tmp_path / 'video.mp4'
    path.touch()

    def make(fps=1, video_fps=None, source=path, **attributes):
        capture = type('Capture', (FakeCapture,), attributes)
        monkeypatch.setattr('mmssm.apis.video.cv2.VideoCapture', capture)
        return SampledVideo(source, fps, video_fps)

    return make


@pytest.mark.parametrize(
    ('video_fps', 'fps', 'count', 'expected'),
    [
        (25, 1, 76, [0, 25, 50, 75]),
        (25, 1, 75, [0, 25, 50]),
        (5, 1, 12, [0, 5, 10]),
        (1, 1, 3, [0, 1, 2]),
        (25, 5, 12, [0, 5, 10]),
        # Nearest to each second: 29.97, 59.94, 89.91, ... do not drift.
        (29.97, 1, 151, [0, 30, 60, 90, 120, 150]),
        (2.5, 1, 11, [0, 3, 5, 8, 10]),
    ],
)
def test_sampled_frames(make_video, video_fps, fps, count, expected):
    video = make_video(fps, video_fps, frame_count=count)
    frames = list(video)
    assert [f.source_idx for f in frames] == expected
    # RGB: what was blue is last.
    assert [int(f.image[0, 0, 2]) for f in frames] == expected
    assert [f.time_s for f in frames] == [i / video_fps for i in expected]
    assert len(video) == len(expected)


def test_real_file(tmp_path):
    path = tmp_path / 'video.mp4'
    writer = cv2.VideoWriter(
        str(path), cv2.VideoWriter_fourcc(*'mp4v'), 5, (32, 24)
    )
    for index in range(17):
        image = np.zeros((24, 32, 3), np.uint8)
        image[:] = (0, 0, 20 + 10 * index)
        writer.write(image)
    writer.release()
    with SampledVideo(path, fps=1) as video:
        assert video.video_fps == 5
        frames = list(video)
    assert [f.time_s for f in frames] == [0, 1, 2, 3]
    assert frames[0].image.shape == (24, 32, 3)
    reds = [f.image[..., 0].mean() for f in frames]
    np.testing.assert_allclose(reds, [20, 70, 120, 170], atol=8)
    assert frames[3].image[..., 2].mean() < 15


def test_unreadable_files(tmp_path):
    with pytest.raises(FileNotFoundError, match='video not found'):
        SampledVideo(tmp_path / 'no.mp4', 1)
    path = tmp_path / 'text.mp4'
    path.write_text('no video')
    with pytest.raises(ValueError, match=r'cannot open .*text\.mp4 as a vid'):
        SampledVideo(path, 1)


@pytest.mark.parametrize('told', [0.0, float('nan'), -1.0])
def test_unknown_frame_rate(make_video, told):
    def get(self, prop):
        return told if prop == cv2.CAP_PROP_FPS else 100.0

    with pytest.raises(ValueError, match='does not tell its frame rate'):
        make_video(get=get)
    assert make_video(video_fps=25, get=get).video_fps == 25


def test_frame_rate_below_the_model(make_video):
    with pytest.raises(ValueError, match='at least the 5 of the model'):
        make_video(fps=5, video_fps=2)
    with pytest.raises(ValueError, match='`video_fps` is -1'):
        make_video(video_fps=-1)


def test_nothing_decodable(make_video):
    with pytest.raises(ValueError, match='not a single frame'):
        list(make_video(frame_count=0))


def test_cut_off_file_warns(make_video):
    video = make_video(video_fps=25, frame_count=50, told_count=100)
    with pytest.warns(UserWarning, match='100 frames, 50 could be decoded'):
        assert len(list(video)) == 2


def test_frame_that_cannot_be_decoded(make_video):
    video = make_video(retrieve=lambda self: (False, None))
    with pytest.raises(ValueError, match='frame 0 of .* cannot be decoded'):
        list(video)


def test_camera_samples_by_the_clock(make_video, monkeypatch):
    clock = itertools.count(step=0.1)
    monkeypatch.setattr('mmssm.apis.video.time.monotonic', lambda: next(clock))
    video = make_video(source=0, frame_count=60)
    times = [f.time_s for f in video]
    assert len(video) == 0
    # One sample in each second.
    assert [int(t) for t in times] == list(range(len(times)))
    assert len(times) > 4


def test_missing_camera(make_video):
    with pytest.raises(ValueError, match='cannot open camera 3; is it conn'):
        make_video(source=3, is_open=False)
