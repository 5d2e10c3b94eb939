"""Tiny sample videos for tests."""

from pathlib import Path

import numpy as np

from mmssm.datasets.synthetic.phase_script import PhaseScript, draw_script
from mmssm.datasets.synthetic.writer import replace_folder, write_video


def _shorten(script: PhaseScript, length: int) -> PhaseScript:
    """Scale a script to ``length`` seconds, at least one per run."""
    stops = np.array([run.stop for run in script.runs]) / len(script)
    stops = np.rint(stops * length).astype(int)
    stops = np.maximum.accumulate(
        np.maximum(stops - np.arange(len(stops)), 1)
    ) + np.arange(len(stops))
    # rounding up early runs must not push the last ones beyond the end
    latest = length - np.arange(len(stops))[::-1]
    stops = np.minimum(stops, latest)
    durations = np.diff(stops, prepend=0).tolist()
    return PhaseScript([run.phase for run in script.runs], durations)


def make_tiny_videos(
    out_dir: str | Path,
    num_train: int = 2,
    num_test: int = 2,
    frames: tuple[int, int] = (20, 40),
    size: int = 32,
    seed: int = 0,
) -> Path:
    """Write a few short sample videos in the raw layout of Cholec80.

    Like :func:`mmssm.datasets.synthetic.write_sample_videos`, but short and
    without any proof of difficulty. Videos are numbered from 1, the test
    videos (with mp4 and PNG frames) after the training videos.

    Args:
        out_dir (str | Path): Folder to write; it must not exist or be empty.
        num_train (int): Training videos. Defaults to 2.
        num_test (int): Test videos. Defaults to 2.
        frames (tuple[int, int]): Least and most frames of a video, at least
            12. Defaults to (20, 40).
        size (int): Side of the pictures in pixels. Defaults to 32.
        seed (int): Random seed. Defaults to 0.

    Returns:
        Path: ``out_dir``.

    Raises:
        ValueError: If ``frames`` is out of range.
        FileExistsError: If ``out_dir`` holds files.
    """
    if not 12 <= frames[0] <= frames[1]:
        raise ValueError(
            f'`frames` is {frames}; expected (least, most), least >= 12'
        )
    out_dir = Path(out_dir)
    if out_dir.exists() and any(out_dir.iterdir()):
        raise FileExistsError(f'{out_dir} is not empty; choose another')
    with replace_folder(out_dir) as new:
        for number in range(1, num_train + num_test + 1):
            sequence = np.random.SeedSequence(seed, spawn_key=(3, number))
            script_seed, picture_seed = sequence.spawn(2)
            rng = np.random.default_rng(script_seed)
            length = int(rng.integers(frames[0], frames[1] + 1))
            script = _shorten(draw_script(rng), length)
            write_video(
                new,
                number,
                script,
                picture_seed,
                size,
                as_mp4=number > num_train,
            )
    return out_dir
