"""Files of predictions: one JSON object per line, one line per frame."""

import dataclasses
import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from mmssm.evaluation.functional.atomic import replace_when_done


@dataclasses.dataclass(frozen=True)
class FramePrediction:
    """What is known about one frame: a line of a prediction file.

    Attributes:
        video_id (str): Name of the video.
        frame_idx (int): Index of the frame, in frames of the model's fps.
        time_s (float): Time of the frame in the video, in seconds.
        phase (int): Predicted phase id.
        phase_name (str): Its name.
        probabilities (list[float]): Probability of every phase. Values given
            as an array are stored with the digits that bring the same float32
            back.
        intensity (float, optional): Transition intensity lambda in 0..1.
        gt_phase (int, optional): Annotated phase id, -1 where the frame is
            not labelled; None if there is no annotation.
    """

    video_id: str
    frame_idx: int
    time_s: float
    phase: int
    phase_name: str
    probabilities: Sequence[float]
    intensity: float | None = None
    gt_phase: int | None = None

    def to_json(self) -> str:
        """Write the line, without its newline."""
        record: dict[str, Any] = {
            'video_id': self.video_id,
            'frame_idx': int(self.frame_idx),
            'time_s': round(float(self.time_s), 6),
            'phase': int(self.phase),
            'phase_name': self.phase_name,
            'probabilities': [
                _shortest_float32(p) for p in self.probabilities
            ],
            'intensity': (
                None
                if self.intensity is None
                else _shortest_float32(self.intensity)
            ),
        }
        if self.gt_phase is not None:
            record['gt_phase'] = int(self.gt_phase)
        try:
            return json.dumps(record, allow_nan=False, ensure_ascii=False)
        except ValueError as error:
            raise ValueError(
                f'frame {self.frame_idx} of video {self.video_id!r} has a '
                'NaN or infinite probability, intensity or time; expected '
                'finite numbers'
            ) from error


class VideoPredictions(NamedTuple):
    """The frames of one video as arrays, in the order of the file.

    Attributes:
        video_id (str): Name of the video.
        frame_idx (array): int64 ``(frames,)``.
        time_s (array): float64 ``(frames,)``.
        phase (array): int64 ``(frames,)``.
        probabilities (array): float32 ``(frames, phases)``.
        intensity (array or None): float32 ``(frames,)``; None unless every
            frame has one.
        gt_phase (array or None): int64 ``(frames,)``; None unless every frame
            has one.
    """

    video_id: str
    frame_idx: NDArray
    time_s: NDArray
    phase: NDArray
    probabilities: NDArray
    intensity: NDArray | None
    gt_phase: NDArray | None


class PredictionWriter:
    """Write predictions while they are made: every line is flushed.

    Whatever ends the process leaves the frames written so far in a valid
    file. Use as a context manager. An existing file is replaced.

    Args:
        path (str or Path): File to write; folders are made.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open('w', encoding='utf-8', newline='\n')

    def write(self, prediction: FramePrediction) -> None:
        """Append one line and flush it.

        Args:
            prediction (FramePrediction): The frame.

        Raises:
            ValueError: If it holds NaN or infinity, or the writer is closed.
        """
        self._file.write(prediction.to_json() + '\n')
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def write_predictions(
    path: str | Path, predictions: Iterable[FramePrediction]
) -> None:
    """Write a whole prediction file: the old one stays until it is complete.

    Args:
        path (str or Path): File to write; folders are made.
        predictions (Iterable[FramePrediction]): The frames, in order.

    Raises:
        ValueError: If a frame holds NaN or infinity; the file is then left
            as it was.
    """
    with (
        replace_when_done(path) as temporary,
        temporary.open('w', encoding='utf-8', newline='\n') as file,
    ):
        for prediction in predictions:
            file.write(prediction.to_json() + '\n')


def read_predictions(path: str | Path) -> list[FramePrediction]:
    """Read a prediction file.

    A last line that was cut off (the writer was killed in the middle of it)
    is left out with a warning; anything else that is not a prediction is an
    error.

    Args:
        path (str or Path): File to read.

    Returns:
        list[FramePrediction]: Its frames, in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is malformed, with the file and its line number.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f'prediction file not found: {path}. Expected a JSONL file as '
            'written by tools/test.py or tools/stream.py'
        )
    lines = path.read_text(encoding='utf-8', errors='replace').split('\n')
    # A complete file ends in a newline, so what follows the last one is cut.
    tail = lines.pop()
    predictions = [
        _parse_line(line, f'{path}:{number}')
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if tail.strip():
        try:
            predictions.append(_parse_line(tail, f'{path}:{len(lines) + 1}'))
        except ValueError as error:
            warnings.warn(
                f'the last line is cut off and left out: {error}', stacklevel=2
            )
    return predictions


def stack_predictions(
    predictions: Sequence[FramePrediction],
) -> VideoPredictions:
    """Turn the frames of one video into arrays.

    Args:
        predictions (Sequence[FramePrediction]): All frames of one video, in
            order.

    Returns:
        VideoPredictions: The arrays.

    Raises:
        ValueError: If there is no frame, if they are of several videos, if
            they are not frames 0, 1, 2, ... in order, or if they disagree on
            the number of phases.
    """
    if not predictions:
        raise ValueError('`predictions` is empty; expected at least one frame')
    video_ids = sorted({p.video_id for p in predictions})
    if len(video_ids) > 1:
        raise ValueError(
            f'`predictions` is of several videos ({", ".join(video_ids)}); '
            'expected one'
        )
    _check_order(video_ids[0], [p.frame_idx for p in predictions])
    widths = sorted({len(p.probabilities) for p in predictions})
    if len(widths) > 1:
        raise ValueError(
            f'video {video_ids[0]!r} has frames of {widths} probabilities; '
            'expected the same number everywhere'
        )
    return VideoPredictions(
        video_id=video_ids[0],
        frame_idx=np.array([p.frame_idx for p in predictions], np.int64),
        time_s=np.array([p.time_s for p in predictions], np.float64),
        phase=np.array([p.phase for p in predictions], np.int64),
        probabilities=np.array(
            [p.probabilities for p in predictions], np.float32
        ),
        intensity=_column([p.intensity for p in predictions], np.float32),
        gt_phase=_column([p.gt_phase for p in predictions], np.int64),
    )


def _check_order(video_id: str, indices: list[int]) -> None:
    """Raise ValueError unless the frames are 0, 1, 2, ... in order."""
    for expected, index in enumerate(indices):
        if index == expected:
            continue
        if expected in indices:
            problem = f'frame {index} stands where frame {expected} should'
        else:
            problem = f'frame {expected} is missing'
        raise ValueError(
            f'video {video_id!r}: {problem}; expected the frames from 0 to '
            f'{max(indices)} in order, each once'
        )


def _column(values: list, dtype: type) -> NDArray | None:
    if any(value is None for value in values):
        return None
    return np.array(values, dtype)


def _shortest_float32(value: ArrayLike) -> float:
    # repr of the float64 nearest to a float32 has 17 digits; 9 are enough.
    return float(str(np.float32(value)))


_FIELDS: dict[str, tuple[type, ...]] = {
    'video_id': (str,),
    'frame_idx': (int,),
    'time_s': (int, float),
    'phase': (int,),
    'phase_name': (str,),
    'probabilities': (list,),
}


def _parse_line(line: str, where: str) -> FramePrediction:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f'{where}: not a JSON object ({error})') from error
    if not isinstance(record, dict):
        raise ValueError(
            f'{where}: holds a {type(record).__name__}; expected an object'
        )
    for name, types in _FIELDS.items():
        if name not in record:
            raise ValueError(f'{where}: `{name}` is missing')
        if not isinstance(record[name], types):
            expected = ' or '.join(t.__name__ for t in types)
            raise ValueError(
                f'{where}: `{name}` is {record[name]!r}; expected {expected}'
            )
    known = {field.name for field in dataclasses.fields(FramePrediction)}
    return FramePrediction(**{k: v for k, v in record.items() if k in known})
