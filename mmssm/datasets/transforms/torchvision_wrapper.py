"""Use the transforms of torchvision on clips."""

from collections.abc import Mapping
from typing import Any

import torch
from torchvision.transforms import InterpolationMode, v2

from mmssm.datasets.transforms.pipeline import (
    check_frames,
    check_scope,
    draw_key,
    seeded_torch,
)
from mmssm.registry import TRANSFORMS

# random transforms whose name does not start with "Random"
_RANDOM_NAMES = (
    'AugMix',
    'AutoAugment',
    'ColorJitter',
    'ElasticTransform',
    'GaussianBlur',
    'GaussianNoise',
    'RandAugment',
    'ScaleJitter',
    'TrivialAugmentWide',
)


def _build(cfg: Mapping) -> torch.nn.Module:
    """Build a v2 transform from a config; nested ones have a ``type`` too."""
    kwargs = dict(cfg)
    name = kwargs.pop('type')
    cls = getattr(v2, name, None)
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise ValueError(
            f'`transform` has type {name!r}, which torchvision.transforms.v2 '
            'does not have'
        )
    try:
        return cls(**{key: _argument(key, v) for key, v in kwargs.items()})
    except (TypeError, ValueError) as error:
        raise type(error)(f'torchvision v2.{name}: {error}') from error


def _argument(key: str, value: Any) -> Any:
    if isinstance(value, Mapping) and 'type' in value:
        return _build(value)
    if isinstance(value, (list, tuple)):
        return [_argument(key, item) for item in value]
    if key == 'interpolation' and isinstance(value, str):
        return InterpolationMode(value)
    return value


def _is_random(cfg: Mapping) -> bool:
    name = cfg['type']
    if name.startswith('Random') or name in _RANDOM_NAMES:
        return True
    nested = cfg.get('transforms', ())
    return any(isinstance(c, Mapping) and _is_random(c) for c in nested)


@TRANSFORMS.register_module()
class TorchVisionTransform:
    """Apply a transform of ``torchvision.transforms.v2`` to a clip.

    Args:
        transform (Mapping): Its config: ``type`` is the class name, the rest
            its arguments, configs of other transforms among them
            (``dict(type='RandomApply', transforms=[dict(...)], p=0.5)``).
            ``interpolation`` may be a string.
        scope (str, optional): How often a random transform draws: once per
            ``'frame'``, per ``'clip'`` or per ``'video'`` (the same for all
            clips of a video in an epoch). Defaults to None, for transforms
            without randomness: they see all frames at once.

    Raises:
        ValueError: If the transform is unknown, or is random and has no
            scope.

    Example:
        >>> resize = TorchVisionTransform(dict(type='Resize', size=8))
        >>> frames = torch.zeros(4, 3, 16, 16, dtype=torch.uint8)
        >>> resize(dict(frames=frames))['frames'].shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(self, transform: Mapping, scope: str | None = None) -> None:
        check_scope(scope, allow_none=True)
        if not isinstance(transform, Mapping) or 'type' not in transform:
            raise ValueError(
                f'`transform` is {transform!r}; expected a config such as '
                "dict(type='Resize', size=264)"
            )
        if scope is None and _is_random(transform):
            raise ValueError(
                f'{transform["type"]} is random; set `scope` to '
                "'frame', 'clip' or 'video'"
            )
        self.transform = _build(transform)
        self.scope = scope

    def __call__(self, results: dict) -> dict:
        frames = check_frames(type(self).__name__, results)
        if self.scope == 'frame':
            done = []
            for number, frame in enumerate(frames):
                with seeded_torch(draw_key(results, 'frame', number)):
                    done.append(self.transform(frame))
            sizes = {tuple(frame.shape) for frame in done}
            if len(sizes) > 1:
                raise ValueError(
                    f'{self!r} gave frames of sizes {sorted(sizes)}; '
                    "expected one size: use scope='video', or crop"
                )
            results['frames'] = torch.stack(done)
        elif self.scope is None:
            results['frames'] = self.transform(frames)
        else:
            with seeded_torch(draw_key(results, self.scope)):
                results['frames'] = self.transform(frames)
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.transform}, scope={self.scope!r})'
