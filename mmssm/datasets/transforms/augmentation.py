"""Augmentations of whole clips at once, faster than frame by frame."""

import numpy as np
import torch
from torch import Tensor

from mmssm.datasets.transforms.pipeline import (
    check_frames,
    check_scope,
    numpy_generator,
)
from mmssm.registry import TRANSFORMS

# luma of ITU-R 601, as torchvision uses it
_LUMA = (0.2989, 0.587, 0.114)


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
        if numpy_generator(results, 'video').random() < self.prob:
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
        draws = numpy_generator(results, self.scope).random(
            (rows, columns + 1)
        )
        draws = np.broadcast_to(draws, (num_frames, columns + 1))
        return 2 * draws[:, 1:] - 1, draws[:, :1] < self.prob


@TRANSFORMS.register_module()
class ClipColorJitter:
    """Change brightness, contrast and saturation, in this order.

    ``brightness`` multiplies a frame, ``contrast`` mixes it with its mean
    luma, ``saturation`` with its luma; each factor is drawn uniformly from
    ``1 - x .. 1 + x``, x being the argument. Same formulas as torchvision's
    ``ColorJitter``, applied to all frames by broadcasting.

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
        self.limits = (brightness, contrast, saturation)
        self._draws = _FrameDraws(prob, scope)

    def __call__(self, results: dict) -> dict:
        frames = check_frames(type(self).__name__, results)
        draws, use = self._draws.draw(results, len(frames), 3)
        factors = np.where(use, 1 + draws * np.array(self.limits), 1.0)
        factors = torch.from_numpy(factors.astype(np.float32))
        brightness, contrast, saturation = factors.view(-1, 3, 1, 1, 1).unbind(
            1
        )
        image = frames.float()
        if self.limits[0]:
            image.mul_(brightness).clamp_(max=255)
        if self.limits[1]:
            mean = self._luma(image).mean((-2, -1), keepdim=True)
            image.mul_(contrast).add_((1 - contrast) * mean).clamp_(0, 255)
        if self.limits[2]:
            luma = self._luma(image)
            image.mul_(saturation).add_((1 - saturation) * luma)
            image.clamp_(0, 255)
        results['frames'] = image.to(torch.uint8)
        return results

    @staticmethod
    def _luma(image: Tensor) -> Tensor:
        """Return the luma ``(num_frames, 1, height, width)``."""
        red, green, blue = image.unbind(1)
        luma = red * _LUMA[0]
        luma.add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])
        return luma.unsqueeze(1)

    def __repr__(self) -> str:
        brightness, contrast, saturation = self.limits
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
