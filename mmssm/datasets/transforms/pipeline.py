"""Chain transforms over the frames of a clip, reproducibly."""

import contextlib
import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from mmssm.registry import TRANSFORMS

SCOPES = ('frame', 'clip', 'video')


class ClipPipeline:
    """Run transforms on the dict of one clip.

    Each transform is a callable from dict to dict. The dict of a clip holds
    ``frame_paths`` (list[str]), later ``frames`` (uint8 tensor
    ``(num_frames, 3, height, width)``, RGB), ``video_id`` (str), ``clip``
    (int), ``frame_idx`` (int, index of the first frame) and ``seed`` (int).
    The pipeline adds ``stage``, the position of the transform that runs:
    random transforms draw from ``(seed, stage, scope)``, so what they draw
    depends neither on workers nor on other transforms.

    Args:
        transforms (Sequence): Transform configs or callables.

    Raises:
        TypeError: If a transform is neither.
    """

    def __init__(self, transforms: Sequence) -> None:
        self.transforms = []
        for transform in transforms:
            if isinstance(transform, dict):
                transform = TRANSFORMS.build(transform)
            elif not callable(transform):
                raise TypeError(
                    f'`pipeline` holds a {type(transform).__name__}; '
                    'expected config dicts or callables'
                )
            self.transforms.append(transform)

    def __call__(self, results: dict) -> dict:
        for stage, transform in enumerate(self.transforms):
            results['stage'] = stage
            results = transform(results)
        return results

    def without_loading(self) -> 'ClipPipeline':
        """Return the same pipeline for frames already in memory.

        Streaming applies it to ``dict(frames=...)`` of one frame, which makes
        a stream see the same pixels as a test run.

        Returns:
            ClipPipeline: Without the transforms that read ``frame_paths``.
        """
        return ClipPipeline(
            [
                transform
                for transform in self.transforms
                if not getattr(transform, 'loads_frames', False)
            ]
        )


def draw_key(results: dict, scope: str, frame: int = 0) -> int | None:
    """Name the random draw of a transform.

    Args:
        results (dict): The clip, see :class:`ClipPipeline`.
        scope (str): ``'video'``: one draw for all clips of the video;
            ``'clip'``: one for each clip; ``'frame'``: one for each frame.
        frame (int): Number of the frame in the clip. Defaults to 0.

    Returns:
        int | None: Seed of the draw, of up to 160 bits; ``None`` if the clip
        has no seed (streaming), which leaves the draw to the global
        generator.
    """
    if results.get('seed') is None:
        return None
    key = results['seed'] << 32 | results.get('stage', 0)
    if scope == 'clip':
        return (key << 2 | 1) << 62 | results['frame_idx']
    if scope == 'frame':
        return (key << 2 | 2) << 62 | results['frame_idx'] + frame
    return key


def generator(results: dict, scope: str) -> random.Random:
    """Return the generator of a clip's draws for ``scope``.

    Python's own generator: several times faster to create than numpy's or
    torch's, and a per-frame sampler needs a new one for every frame.

    Args:
        results (dict): The clip, see :class:`ClipPipeline`.
        scope (str): As for :func:`draw_key`; ``'frame'`` draws of a clip
            come from one generator, in the order of the frames.

    Returns:
        random.Random: A new generator.
    """
    key = draw_key(results, scope)
    if key is None:
        key = int(torch.randint(2**62, ()))
    return random.Random(key)


@contextlib.contextmanager
def seeded_torch(key: int | None) -> Iterator[None]:
    """Seed torch's CPU generator inside the block and restore it after.

    Args:
        key (int | None): Seed, see :func:`draw_key`; ``None``
            changes nothing.

    Yields:
        None: Nothing.
    """
    if key is None:
        yield
        return
    generator = torch.default_generator
    before = generator.get_state()
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    generator.manual_seed(int(seed >> np.uint64(1)))
    try:
        yield
    finally:
        generator.set_state(before)


def check_scope(scope: str | None, allow_none: bool = False) -> None:
    """Refuse an unknown ``scope``.

    Args:
        scope (str | None): The argument of a transform.
        allow_none (bool): Whether ``None`` is accepted. Defaults to False.

    Raises:
        ValueError: If it is unknown.
    """
    if scope in SCOPES or (scope is None and allow_none):
        return
    accepted = ', '.join(repr(s) for s in SCOPES)
    raise ValueError(
        f'`scope` is {scope!r}; expected {accepted}'
        + (' or None' if allow_none else '')
    )


def check_frames(name: str, results: dict) -> torch.Tensor:
    """Return ``results['frames']``, or say what is wrong with it.

    Args:
        name (str): The transform that asks.
        results (dict): The clip, see :class:`ClipPipeline`.

    Returns:
        Tensor: uint8 frames ``(num_frames, 3, height, width)``.

    Raises:
        TypeError: If they are missing or of another dtype or shape.
    """
    frames = results.get('frames')
    if (
        not isinstance(frames, torch.Tensor)
        or frames.dtype != torch.uint8
        or frames.ndim != 4
        or frames.shape[1] != 3
    ):
        got = (
            f'{frames.dtype} of shape {tuple(frames.shape)}'
            if isinstance(frames, torch.Tensor)
            else type(frames).__name__
        )
        raise TypeError(
            f'{name}: `frames` is {got}; expected a uint8 tensor '
            '(num_frames, 3, height, width). Is LoadFrames the first '
            'transform of the pipeline?'
        )
    return frames
