"""List the frames of a video."""

import re
from pathlib import Path

import numpy as np

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png')


def list_frames(folder: Path) -> list[str]:
    """Return the image files of a folder in the order of their numbers.

    Args:
        folder (Path): Holds the frames of one video.

    Returns:
        list[str]: File names; ``frame2.jpg`` comes before ``frame10.jpg``.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If it is empty, a frame is missing in the middle, or one
            is there twice.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f'frame folder not found: {folder}. Check `data_root`, '
            '`frame_dir` and `split`; expected the images of a video in '
            '<data_root>/<frame_dir>/<video>/'
        )
    names = [
        path.name
        for path in folder.iterdir()
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not names:
        raise ValueError(
            f'{folder} holds no images ({", ".join(IMAGE_SUFFIXES)}); '
            'extract the frames of the video or leave it out of `split`'
        )
    stems = {name.rsplit('.', 1)[0] for name in names}
    if len(stems) != len(names):
        raise ValueError(
            f'{folder} holds the same frame as two kinds of image; keep one '
            'kind'
        )
    # digits are compared as numbers
    names.sort(
        key=lambda name: [
            (0, int(part), '') if part.isdigit() else (1, 0, part)
            for part in re.split(r'(\d+)', name)
            if part
        ]
    )
    _check_numbering(folder, names)
    return names


def _check_numbering(folder: Path, names: list[str]) -> None:
    """Refuse a missing frame: all labels after it would shift."""
    stems = [name.rsplit('.', 1)[0] for name in names]
    if len(stems) < 3 or not all(stem.isdigit() for stem in stems):
        return
    steps = np.diff([int(stem) for stem in stems])
    usual = int(np.median(steps))
    wrong = np.flatnonzero(steps != usual)
    if len(wrong):
        i = int(wrong[0])
        raise ValueError(
            f'{folder}: {names[i + 1]} follows {names[i]} while frames are '
            f'{usual} apart elsewhere. Extract the missing frames, or labels '
            'would shift'
        )
