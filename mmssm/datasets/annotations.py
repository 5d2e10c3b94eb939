"""Read phase annotation files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def _split_row(path: Path, number: int, line: str) -> tuple[str, str]:
    # whitespace of any kind: TABs as released, spaces as edited by hand
    parts = line.split()
    if len(parts) < 2:
        raise ValueError(
            f'{path}, line {number}: {line!r} has {len(parts)} column(s); '
            'expected `frame<TAB>phase`'
        )
    return parts[0], ' '.join(parts[1:])


def _read_rows(path: Path) -> tuple[list[int], list[str], int]:
    """Return frames, labels and the 1-based line of the first row."""
    if not path.is_file():
        raise FileNotFoundError(
            f'annotation file not found: {path}. Check `data_root`, '
            '`phase_dir`, `phase_template` and `split` of the dataset'
        )
    try:
        # utf-8-sig drops a byte order mark, splitlines() takes CRLF
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(
            f'{path} is not a UTF-8 text file ({error}); save it as plain text'
        ) from error
    while lines and not lines[-1].strip():
        lines.pop()
    first = 0
    if lines and not lines[0].strip():
        raise ValueError(f'{path}, line 1: the line is blank; remove it')
    if lines and not lines[0].split()[0].isdigit():
        first = 1
        if lines[0].split()[0].lower() != 'frame':
            raise ValueError(
                f'{path}, line 1: {lines[0]!r} is neither the header '
                '`Frame<TAB>Phase` nor a row `frame<TAB>phase`'
            )
    if len(lines) == first:
        raise ValueError(f'{path} holds no annotation rows')
    frames, labels = [], []
    for number, line in enumerate(lines[first:], start=first + 1):
        frame, label = _split_row(path, number, line)
        if not frame.isdigit():
            raise ValueError(
                f'{path}, line {number}: frame {frame!r}; expected a whole '
                'number'
            )
        frames.append(int(frame))
        labels.append(label)
    return frames, labels, first + 1


def _check_frames(
    path: Path, frames: np.ndarray, first: int, first_frame: int
) -> None:
    if frames[0] != first_frame:
        raise ValueError(
            f'{path}, line {first}: the first frame is {frames[0]}; expected '
            f'{first_frame}. If the rows count from {frames[0]}, set '
            f'`first_frame` = {frames[0]}; if rows are missing, restore '
            'them: labels would shift otherwise'
        )
    if len(frames) < 2:
        return
    steps = np.diff(frames)
    wrong = np.flatnonzero((steps != steps[0]) | (steps <= 0))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f'{path}, line {first + row + 1}: frame {frames[row + 1]} '
            f'follows {frames[row]}; expected {frames[row] + steps[0]}. '
            'Restore the missing rows or remove the surplus ones'
        )


def _to_ids(
    path: Path,
    labels: list[str],
    classes: Sequence[str],
    first: int,
    first_phase: int,
) -> np.ndarray:
    names = {name: index for index, name in enumerate(classes)}
    if all(label.isdigit() for label in labels):
        ids = np.array([int(label) for label in labels], dtype=np.int64)
        ids -= first_phase
        wrong = np.flatnonzero((ids < 0) | (ids >= len(classes)))
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f'{path}, line {first + row}: phase {labels[row]}; expected '
                f'{first_phase} to {first_phase + len(classes) - 1} '
                f'({", ".join(classes)}). If the file counts phases from '
                f'{1 - first_phase}, set `first_phase` = {1 - first_phase}'
            )
        return ids
    for row, label in enumerate(labels):
        if label not in names:
            raise ValueError(
                f'{path}, line {first + row}: unknown phase {label!r}; '
                f'accepted names: {", ".join(classes)} (or whole numbers '
                'throughout the file)'
            )
    return np.array([names[label] for label in labels], dtype=np.int64)


def read_phase_file(
    path: str | Path,
    classes: Sequence[str],
    stride: int = 1,
    first_frame: int = 0,
    first_phase: int = 0,
) -> np.ndarray:
    """Read the phase of every ``stride``-th frame of one video.

    The file has a row ``frame<TAB>phase`` per frame, from the first. The
    header ``Frame<TAB>Phase`` is optional; spaces for TABs, CRLF line ends,
    a byte order mark and blank lines at the end are accepted. Phases are
    names, mapped by name whatever their order. Numbers are taken as they
    stand only if the whole file has numbers in the range of ``classes``.

    Args:
        path (str | Path): The annotation file.
        classes (Sequence[str]): Names of the phases, in the order of their
            ids.
        stride (int): Keeps the rows with ``frame % stride == 0``: annotation
            rate over frame rate. Defaults to 1.
        first_frame (int): Number of the first frame. Defaults to 0.
        first_phase (int): Number of the first phase, for files with numbers:
            0 or 1. It is never guessed: a video without the first and the
            last phase reads as well either way. Defaults to 0.

    Returns:
        np.ndarray: int64 phase ids ``(num_frames,)``.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: With file and line, if a row is malformed, a frame is
            missing or out of order, or a phase is unknown.
    """
    path = Path(path)
    rows, labels, first = _read_rows(path)
    frames = np.array(rows, dtype=np.int64)
    _check_frames(path, frames, first, first_frame)
    frames -= first_frame
    step = int(frames[1]) if len(frames) > 1 else stride
    if stride % step:
        raise ValueError(
            f'{path} has a row every {step} frames; expected every frame or '
            f'a divisor of {stride} (`annotation_fps` / `fps`). Set '
            '`annotation_fps` to the rate of the rows, or renumber the frame '
            'column to count rows'
        )
    ids = _to_ids(path, labels, classes, first, first_phase)
    return ids[frames % stride == 0]
