"""Frames of a video file or a camera, at the rate of the model."""

import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import cv2
from numpy.typing import NDArray
from typing_extensions import Self


class VideoFrame(NamedTuple):
    """One frame that the model gets to see.

    Attributes:
        source_idx (int): Index of the frame in the video.
        time_s (float): Its time in the video (for a camera: since the first
            frame), in seconds.
        image (array): uint8 RGB ``(height, width, 3)``.
    """

    source_idx: int
    time_s: float
    image: NDArray


class SampledVideo:
    """Iterate over the frames of a video at the frame rate of a model.

    Sample k of a file is the frame nearest to ``k / fps`` seconds, with
    index ``round(k * video_fps / fps)``: every 25th frame of a 25-fps video
    for a model of 1 fps. Also where the ratio is not whole (29.97 fps), the
    samples do not drift. The frames between are not decoded to images. A
    camera gives the first frame after each ``k / fps`` seconds of real time;
    what comes while the model is busy is dropped.

    Args:
        source (str, Path or int): Video file, or index of a camera.
        fps (float): Frames per second that the model wants.
        video_fps (float, optional): Frame rate of the file, if its container
            does not say or is wrong. Default: None, asks the container.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be opened, its frame rate is not known, or
            its frame rate is below ``fps``.
    """

    def __init__(
        self,
        source: str | Path | int,
        fps: float,
        video_fps: float | None = None,
    ) -> None:
        self.source = source
        self.is_camera = isinstance(source, int)
        if not self.is_camera and not Path(source).is_file():
            raise FileNotFoundError(f'video not found: {source}')
        self._capture = cv2.VideoCapture(
            source if self.is_camera else str(source)
        )
        if not self._capture.isOpened():
            what = f'camera {source}' if self.is_camera else str(source)
            raise ValueError(
                f'cannot open {what}'
                + (
                    '; is it connected, and not in use elsewhere?'
                    if self.is_camera
                    else ' as a video; is it complete, and of a format that '
                    'OpenCV decodes (mp4, avi, mkv)?'
                )
            )
        self.fps = fps
        self.num_source_frames = 0
        if not self.is_camera:
            self.video_fps = self._find_video_fps(video_fps)
            count = self._capture.get(cv2.CAP_PROP_FRAME_COUNT)
            # Containers without an index answer 0 or nonsense below it.
            self.num_source_frames = max(0, int(count))

    def __len__(self) -> int:
        """Samples in a file by its container, 0 if that does not say."""
        if not self.num_source_frames:
            return 0
        return math.ceil(
            (self.num_source_frames - 0.5) * self.fps / self.video_fps
        )

    def __iter__(self) -> Iterator[VideoFrame]:
        """Decode the samples in order.

        Yields:
            VideoFrame: The next sample.

        Raises:
            ValueError: If not a single frame can be decoded.
        """
        return self._camera_frames() if self.is_camera else self._file_frames()

    def close(self) -> None:
        """Release the file or the camera."""
        self._capture.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _find_video_fps(self, video_fps: float | None) -> float:
        told = self._capture.get(cv2.CAP_PROP_FPS)
        if video_fps is None:
            video_fps = told
            if not (math.isfinite(told) and told > 0):
                raise ValueError(
                    f'{self.source} does not tell its frame rate (it says '
                    f'{told}); give it as `video_fps` (--video-fps)'
                )
        if not (math.isfinite(video_fps) and video_fps > 0):
            raise ValueError(
                f'`video_fps` is {video_fps}; expected a positive number'
            )
        if video_fps < self.fps:
            raise ValueError(
                f'{self.source} has {video_fps:g} frames per second; '
                f'expected at least the {self.fps:g} of the model. If the '
                'container is wrong, give `video_fps` (--video-fps)'
            )
        return video_fps

    def _file_frames(self) -> Iterator[VideoFrame]:
        source_idx, sample = 0, 0
        while self._capture.grab():
            # Halves up, not to even as round() does.
            wanted = math.floor(sample * self.video_fps / self.fps + 0.5)
            if source_idx == wanted:
                yield self._retrieve(source_idx, source_idx / self.video_fps)
                sample += 1
            source_idx += 1
        if sample == 0:
            raise ValueError(
                f'not a single frame of {self.source} can be decoded; is the '
                'file complete?'
            )
        # One or two frames less than told is usual, a second is not.
        missing = self.num_source_frames - source_idx
        if missing > self.video_fps:
            warnings.warn(
                f'{self.source} should have {self.num_source_frames} frames, '
                f'{source_idx} could be decoded: the file seems cut off',
                stacklevel=2,
            )

    def _camera_frames(self) -> Iterator[VideoFrame]:
        source_idx, start, due = 0, None, 0.0
        while self._capture.grab():
            now = time.monotonic()
            start = now if start is None else start
            if now - start >= due:
                yield self._retrieve(source_idx, now - start)
                # The next whole period: a slow model skips samples.
                late = math.floor((time.monotonic() - start) * self.fps)
                due = (late + 1) / self.fps
            source_idx += 1
        if source_idx == 0:
            raise ValueError(f'camera {self.source} gives no frame')

    def _retrieve(self, source_idx: int, time_s: float) -> VideoFrame:
        decoded, image = self._capture.retrieve()
        if not decoded:
            raise ValueError(
                f'frame {source_idx} of {self.source} cannot be decoded'
            )
        return VideoFrame(
            source_idx, time_s, cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        )
