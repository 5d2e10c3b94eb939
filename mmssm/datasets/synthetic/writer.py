"""Write sample videos in the raw layout of Cholec80."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from mmengine.logging import print_log

from mmssm.datasets.cholec80 import CHOLEC80_PHASES
from mmssm.datasets.synthetic.phase_script import (
    PhaseScript,
    draw_script,
    label_ceilings,
)
from mmssm.datasets.synthetic.scene import TICKS_PER_SECOND, SurgicalScene

GENERATOR_VERSION = 1
"""Counts changes of what is drawn: equal version and seed, equal videos."""

INFO_NAME = 'sample_info.json'
ANNOTATION_FPS = 25
CEILING_BOUNDS = dict(frame=0.72, clip=0.86, video=0.99)
"""Largest accuracy a memory of one frame or of a clip may allow, and the
least a memory of the whole video must, see :func:`label_ceilings`."""

_TRAIN, _TEST = 0, 1
_JPEG_QUALITY = 92
_MAX_DRAWS = 200


class SampleSet(NamedTuple):
    """Scripts and picture seeds of the videos, by video number.

    Attributes:
        train (dict[int, tuple[PhaseScript, np.random.SeedSequence]]):
            Training videos.
        test (dict[int, tuple[PhaseScript, np.random.SeedSequence]]): Test
            videos.
        ceilings (dict[str, float]): Label ceilings of the test videos.
        num_draws (int): Test sets drawn until one was hard enough.
    """

    train: dict[int, tuple[PhaseScript, np.random.SeedSequence]]
    test: dict[int, tuple[PhaseScript, np.random.SeedSequence]]
    ceilings: dict[str, float]
    num_draws: int


def _draw_video(
    seed: int, group: int, draw: int, number: int
) -> tuple[PhaseScript, np.random.SeedSequence]:
    # one sequence per video: no video depends on how many others there are
    sequence = np.random.SeedSequence(seed, spawn_key=(group, draw, number))
    script, picture = sequence.spawn(2)
    return draw_script(np.random.default_rng(script)), picture


def is_hard_enough(ceilings: dict[str, float]) -> bool:
    """Check label ceilings against ``CEILING_BOUNDS``.

    Args:
        ceilings (dict[str, float]): From :func:`label_ceilings`.

    Returns:
        bool: Whether memory is needed and, if complete, suffices.
    """
    return (
        ceilings['frame'] <= CEILING_BOUNDS['frame']
        and ceilings['clip'] <= CEILING_BOUNDS['clip']
        and ceilings['video'] >= CEILING_BOUNDS['video']
    )


def draw_sample_set(
    seed: int = 0, num_train: int = 24, num_test: int = 8
) -> SampleSet:
    """Draw scripts until the test videos are proven to need memory.

    Args:
        seed (int): Random seed. Defaults to 0.
        num_train (int): Training videos, numbered from 1. Defaults to 24.
        num_test (int): Test videos, numbered on. Defaults to 8.

    Returns:
        SampleSet: The scripts, equal for equal arguments.

    Raises:
        RuntimeError: If no test set is hard enough.
    """
    train = {
        number: _draw_video(seed, _TRAIN, 0, number)
        for number in range(1, num_train + 1)
    }
    numbers = range(num_train + 1, num_train + num_test + 1)
    for draw in range(_MAX_DRAWS):
        test = {
            number: _draw_video(seed, _TEST, draw, number)
            for number in numbers
        }
        ceilings = label_ceilings([script for script, _ in test.values()])
        text = ', '.join(f'{k} {v:.3f}' for k, v in ceilings.items())
        if is_hard_enough(ceilings):
            print_log(
                f'Sample videos, seed {seed}: label ceilings of the test '
                f'set with the memory of one: {text}',
                logger='current',
            )
            return SampleSet(train, test, ceilings, draw + 1)
        print_log(
            f'Sample videos, seed {seed}: test set {draw + 1} is not hard '
            f'enough ({text}; bounds {CEILING_BOUNDS}); drawing another',
            logger='current',
        )
    raise RuntimeError(
        f'none of {_MAX_DRAWS} test sets of {num_test} videos was hard '
        'enough; use more test videos (8 are known to work)'
    )


def write_annotation(path: Path, script: PhaseScript) -> None:
    """Write the phases of a video, 25 rows per second, by name.

    Args:
        path (Path): The file.
        script (PhaseScript): The phases.
    """
    names = [CHOLEC80_PHASES[phase] for phase in script.labels]
    rows = [
        f'{frame}\t{names[frame // ANNOTATION_FPS]}\n'
        for frame in range(ANNOTATION_FPS * len(names))
    ]
    with open(path, 'w', encoding='utf-8', newline='\n') as file:
        file.write('Frame\tPhase\n')
        file.writelines(rows)


def _write_image(path: Path, image: np.ndarray, *options: int) -> None:
    """Encode an RGB image."""
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(path.suffix, bgr, list(options))
    if not done:
        raise OSError(f'OpenCV cannot encode {path.suffix} images')
    data.tofile(path)


def _write_mp4(path: Path, scene: SurgicalScene) -> None:
    size = (scene.size, scene.size)
    fourcc = cv2.VideoWriter_fourcc(*'mp4v')
    video = cv2.VideoWriter(str(path), fourcc, TICKS_PER_SECOND, size)
    if not video.isOpened():
        raise OSError(
            f'OpenCV cannot write {path} with the mp4v codec; install '
            'opencv-python or opencv-python-headless from PyPI, which bring '
            'it'
        )
    for picture in scene.frames():
        video.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    video.release()


def _extract_frames(video_path: Path, frame_dir: Path, count: int) -> None:
    """Write every fifth decoded picture as PNG: what a stream will see."""
    capture = cv2.VideoCapture(str(video_path))
    tick = 0
    while True:
        more, picture = capture.read()
        if not more:
            break
        if tick % TICKS_PER_SECOND == 0:
            image = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
            name = f'{tick // TICKS_PER_SECOND:08d}.png'
            _write_image(frame_dir / name, image)
        tick += 1
    capture.release()
    if tick != count * TICKS_PER_SECOND:
        raise OSError(
            f'{video_path} has {tick} pictures after writing; expected '
            f'{count * TICKS_PER_SECOND}. Is the disk full?'
        )


def write_video(
    root: Path,
    number: int,
    script: PhaseScript,
    seed: np.random.SeedSequence,
    size: int,
    as_mp4: bool,
) -> None:
    """Write frames, annotation and, if asked for, the mp4 of one video.

    Args:
        root (Path): Folder of the dataset.
        number (int): Number of the video.
        script (PhaseScript): Its phases.
        seed (np.random.SeedSequence): Seed of its pictures.
        size (int): Side of the pictures in pixels.
        as_mp4 (bool): Whether to write ``videos/videoNN.mp4`` at 5 fps and
            take the frames from it without loss (PNG). Otherwise the frames
            are drawn at 1 fps and written as JPEG.
    """
    name = f'video{number:02d}'
    frame_dir = root / 'frames' / name
    frame_dir.mkdir(parents=True)
    annotation_dir = root / 'phase_annotations'
    annotation_dir.mkdir(exist_ok=True)
    write_annotation(annotation_dir / f'{name}-phase.txt', script)
    scene = SurgicalScene(script, seed, size)
    if as_mp4:
        (root / 'videos').mkdir(exist_ok=True)
        video_path = root / 'videos' / f'{name}.mp4'
        _write_mp4(video_path, scene)
        _extract_frames(video_path, frame_dir, len(script))
        return
    for second, picture in enumerate(scene.frames(TICKS_PER_SECOND)):
        _write_image(
            frame_dir / f'{second:08d}.jpg',
            picture,
            cv2.IMWRITE_JPEG_QUALITY,
            _JPEG_QUALITY,
        )


@contextlib.contextmanager
def replace_folder(out_dir: Path) -> Iterator[Path]:
    """Fill a new folder and put it in place only when it is complete.

    Args:
        out_dir (Path): The folder to create or replace.

    Yields:
        Path: A new empty folder beside it. It becomes ``out_dir`` at the end
        of the block, or is removed if the block raises.
    """
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    new = Path(
        tempfile.mkdtemp(prefix=f'.{out_dir.name}-', dir=out_dir.parent)
    )
    try:
        yield new
        # mkdtemp makes private folders; give the usual permissions
        umask = os.umask(0)
        os.umask(umask)
        new.chmod(0o777 & ~umask)
        if out_dir.exists():
            old = new.with_name(new.name + '-old')
            out_dir.rename(old)
            new.rename(out_dir)
            shutil.rmtree(old)
        else:
            new.rename(out_dir)
    finally:
        if new.exists():
            shutil.rmtree(new)


def read_sample_info(out_dir: str | Path) -> dict:
    """Read what a folder of sample videos holds.

    Args:
        out_dir (str | Path): The folder.

    Returns:
        dict: Content of its ``sample_info.json``, ``{}`` without one.
    """
    path = Path(out_dir) / INFO_NAME
    if not path.is_file():
        return {}
    return json.loads(path.read_text(encoding='utf-8'))


def _check_request(seed: int, num_train: int, num_test: int, size: int):
    for name, value, low in (
        ('seed', seed, 0),
        ('num_train', num_train, 1),
        ('num_test', num_test, 1),
        ('size', size, 32),
    ):
        if not isinstance(value, int) or value < low:
            raise ValueError(
                f'`{name}` is {value!r}; expected an integer >= {low}'
            )
    if size % 2:
        raise ValueError(
            f'`size` is {size}; expected an even number, as mp4 needs'
        )


def write_sample_videos(
    out_dir: str | Path,
    seed: int = 0,
    num_train: int = 24,
    num_test: int = 8,
    size: int = 64,
    force: bool = False,
    progress: Callable[[Sequence], Iterator] = iter,
) -> Path:
    """Write sample videos in the raw layout of Cholec80.

    ``frames/videoNN`` holds 1-fps frames: JPEG of training videos, PNG of
    test videos, which are the lossless decoding of ``videos/videoNN.mp4``
    (5 fps, every fifth picture). ``phase_annotations/videoNN-phase.txt`` has
    25 rows per second. ``sample_info.json`` says how the videos were made.
    The folder appears only when it is complete. A complete folder made by
    the same request is left as it is.

    Args:
        out_dir (str | Path): Folder to write.
        seed (int): Random seed; equal seeds give equal videos. Defaults to 0.
        num_train (int): Training videos, numbered from 1. Defaults to 24.
        num_test (int): Test videos, numbered on. Defaults to 8.
        size (int): Side of the pictures in pixels. Defaults to 64.
        force (bool): Whether to replace other sample videos in ``out_dir``.
            Defaults to False.
        progress (Callable): Wraps the list of videos to show progress.
            Defaults to none.

    Returns:
        Path: ``out_dir``.

    Raises:
        ValueError: If an argument is out of range.
        FileExistsError: If ``out_dir`` holds something else.
    """
    _check_request(seed, num_train, num_test, size)
    out_dir = Path(out_dir)
    request = dict(
        generator_version=GENERATOR_VERSION,
        seed=seed,
        num_train=num_train,
        num_test=num_test,
        size=size,
    )
    if out_dir.exists() and any(out_dir.iterdir()):
        info = read_sample_info(out_dir)
        found = {key: info.get(key) for key in request}
        if found == request and not force:
            print_log(f'Sample videos are in {out_dir}', logger='current')
            return out_dir
        if not info:
            raise FileExistsError(
                f'{out_dir} is not empty and holds no {INFO_NAME}, so it is '
                'not replaced; choose another folder'
            )
        if not force:
            raise FileExistsError(
                f'{out_dir} holds other sample videos ({found}; asked for '
                f'{request}); choose another folder or force to replace them'
            )
    samples = draw_sample_set(seed, num_train, num_test)
    videos = [(number, False) for number in samples.train]
    videos += [(number, True) for number in samples.test]
    scripts = {**samples.train, **samples.test}
    with replace_folder(out_dir) as new:
        for number, is_test in progress(videos):
            script, picture_seed = scripts[number]
            write_video(
                new, number, script, picture_seed, size, as_mp4=is_test
            )
        info = dict(
            request,
            ceilings=samples.ceilings,
            ceiling_bounds=CEILING_BOUNDS,
            num_draws=samples.num_draws,
            fps=1,
            video_fps=TICKS_PER_SECOND,
            annotation_fps=ANNOTATION_FPS,
            classes=list(CHOLEC80_PHASES),
            train_videos=list(samples.train),
            test_videos=list(samples.test),
            num_frames={
                f'video{number:02d}': len(script)
                for number, (script, _) in scripts.items()
            },
        )
        text = json.dumps(info, indent=2) + '\n'
        (new / INFO_NAME).write_text(text, encoding='utf-8')
    return out_dir
