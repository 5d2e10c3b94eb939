"""Augmentations of whole clips at once, faster than frame by frame."""

import numpy as np
import torch

from mmssm.datasets.transforms.pipeline import (
    check_frames,
    check_scope,
    generator,
)
from mmssm.registry import TRANSFORMS

# luma of ITU-R 601, as torchvision uses it
_GREY = np.array([[0.2989, 0.587, 0.114]] * 3)


def _check_probability(value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f'`prob` is {value}; expected 0 to 1')


@TRANSFORMS.register_module()
class VideoFlip:
    """Flip all frames of a video, or none.

    The draw holds for the whole video, since a flip in its middle would look
    like another patient.

    Args:
        prob (float): Probability. Defaults to 0.5.
        direction (str): ``'horizontal'`` or ``'vertical'``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, prob: float = 0.5, direction: str = 'horizontal'
    ) -> None:
        _check_probability(prob)
        if direction not in ('horizontal', 'vertical'):
            raise ValueError(
                f'`direction` is {direction!r}; expected '
                "'horizontal' or 'vertical'"
            )
        self.prob = prob
        self.direction = direction

    def __call__(self, results: dict) -> dict:
        frames = check_frames(type(self).__name__, results)
        if generator(results, 'video').random() < self.prob:
            axis = 3 if self.direction == 'horizontal' else 2
            results['frames'] = frames.flip(axis)
        return results

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(prob={self.prob}, '
            f'direction={self.direction!r})'
        )


class _FrameDraws:
    """Draws of one number per frame, clip or video."""

    def __init__(self, prob: float, scope: str) -> None:
        _check_probability(prob)
        check_scope(scope)
        self.prob = prob
        self.scope = scope

    def draw(
        self, results: dict, num_frames: int, columns: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw uniform numbers and whether to use them.

        Args:
            results (dict): The clip.
            num_frames (int): Rows; they are equal unless the scope is
                ``'frame'``.
            columns (int): Numbers per row.

        Returns:
            tuple[np.ndarray, np.ndarray]: Numbers in -1..1, shape
            ``(num_frames, columns)``, and booleans ``(num_frames, 1)``.
        """
        rows = num_frames if self.scope == 'frame' else 1
        rng = generator(results, self.scope)
        draws = np.array([rng.random() for _ in range(rows * (columns + 1))])
        draws = draws.reshape(rows, columns + 1)
        if rows < num_frames:
            draws = draws.repeat(num_frames, axis=0)
        return 2 * draws[:, 1:] - 1, draws[:, :1] < self.prob


@TRANSFORMS.register_module()
class ClipColorJitter:
    """Change brightness, contrast and saturation, in this order.

    ``brightness`` multiplies a frame, ``contrast`` mixes it with its mean
    luma, ``saturation`` with its luma; each factor is drawn uniformly from
    ``1 - x .. 1 + x``, x being the argument. Same formulas as torchvision's
    ``ColorJitter``, applied to all frames at once and clipped at the end.

    Args:
        brightness (float): 0 to 1. Defaults to 0.
        contrast (float): 0 to 1. Defaults to 0.
        saturation (float): 0 to 1. Defaults to 0.
        prob (float): Probability that a frame (clip, video) is changed.
            Defaults to 1.
        scope (str): ``'frame'``, ``'clip'`` or ``'video'``: what shares a
            draw. Defaults to ``'frame'``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        prob: float = 1.0,
        scope: str = 'frame',
    ) -> None:
        for name, value in (
            ('brightness', brightness),
            ('contrast', contrast),
            ('saturation', saturation),
        ):
            if not 0 <= value <= 1:
                raise ValueError(f'`{name}` is {value}; expected 0 to 1')
        self._limits = np.array([brightness, contrast, saturation])
        self._draws = _FrameDraws(prob, scope)

    def __call__(self, results: dict) -> dict:
        frames = check_frames(type(self).__name__, results)
        num_frames, _, height, width = frames.shape
        draws, use = self._draws.draw(results, num_frames, 3)
        factors = np.where(use, 1 + draws * self._limits, 1.0)
        brightness, contrast, saturation = factors.T[..., None, None]
        image = frames.reshape(num_frames, 3, height * width).float()
        # all three are affine in the colour: one matrix per frame; the
        # small matrices are faster in numpy
        matrix = saturation * np.eye(3) + (1 - saturation) * _GREY
        matrix = brightness * contrast * matrix
        mean = image.mean(-1, keepdim=True).numpy()
        offset = (1 - contrast) * brightness * (_GREY @ mean)
        image = torch.baddbmm(
            torch.from_numpy(offset.astype(np.float32)),
            torch.from_numpy(matrix.astype(np.float32)),
            image,
        )
        image = image.clamp_(0, 255).to(torch.uint8)
        results['frames'] = image.view(num_frames, 3, height, width)
        return results

    def __repr__(self) -> str:
        brightness, contrast, saturation = self._limits.tolist()
        return (
            f'{type(self).__name__}(brightness={brightness}, '
            f'contrast={contrast}, saturation={saturation}, '
            f'prob={self._draws.prob}, scope={self._draws.scope!r})'
        )


@TRANSFORMS.register_module()
class RGBShift:
    """Add an offset to each colour channel.

    Args:
        limit (float): Offsets are drawn uniformly from ``-limit..limit``,
            in grey levels of 255. Defaults to 15.
        prob (float): Probability that a frame (clip, video) is changed.
            Defaults to 0.5.
        scope (str): ``'frame'``, ``'clip'`` or ``'video'``: what shares a
            draw. Defaults to ``'frame'``.
        shared (bool): Whether the three channels share the offset, which
            makes it a change of brightness by addition. Defaults to False.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        limit: float = 15.0,
        prob: float = 0.5,
        scope: str = 'frame',
        shared: bool = False,
    ) -> None:
        if not 0 <= limit <= 255:
            raise ValueError(f'`limit` is {limit}; expected 0 to 255')
        self.limit = limit
        self.shared = shared
        self._draws = _FrameDraws(prob, scope)

    def __call__(self, results: dict) -> dict:
        frames = check_frames(type(self).__name__, results)
        columns = 1 if self.shared else 3
        draws, use = self._draws.draw(results, len(frames), columns)
        offsets = np.rint(np.where(use, draws * self.limit, 0.0))
        offsets = torch.from_numpy(offsets.astype(np.int16))
        image = frames.to(torch.int16)
        image.add_(offsets.view(-1, columns, 1, 1)).clamp_(0, 255)
        results['frames'] = image.to(torch.uint8)
        return results

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(limit={self.limit}, '
            f'prob={self._draws.prob}, scope={self._draws.scope!r}, '
            f'shared={self.shared})'
        )
