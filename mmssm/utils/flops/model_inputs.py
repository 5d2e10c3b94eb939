"""Inputs to count the FLOPs of a model with."""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.model import BaseModel
from torch import nn

from mmssm.models.recognizers import PhaseRecognizer

DEFAULT_SIZE = 224


def default_size(config: Mapping[str, Any]) -> tuple[int, int]:
    """Image size that the backbone of a config is built for, or 224.

    Args:
        config (Mapping[str, Any]): Config of a model or of a backbone.

    Returns:
        tuple[int, int]: Height and width.
    """
    size = _backbone(config).get('img_size', DEFAULT_SIZE)
    return (size, size) if isinstance(size, int) else tuple(size)


def example_inputs(
    model: nn.Module,
    config: Mapping[str, Any],
    size: tuple[int, int],
) -> dict[str, Any]:
    """Arguments of ``forward`` for one image.

    For phase recognizers: for one clip of the model's own length.

    Args:
        model (nn.Module): A classifier, segmentor, detector or phase
            recognizer, or a backbone.
        config (Mapping[str, Any]): Its config.
        size (tuple[int, int]): Height and width.

    Returns:
        dict[str, Any]: Arguments by name.
    """
    channels = _backbone(config).get('in_channels', 3)
    image = torch.zeros(1, channels, *size)
    if isinstance(model, PhaseRecognizer):
        clip = image.expand(model.clip_len, -1, -1, -1)
        return dict(inputs=clip[None, None], mode='tensor')
    if not isinstance(model, BaseModel):
        return dict(x=image)
    if not _is_detector(model):
        return dict(inputs=image, mode='tensor')
    return dict(
        inputs=image,
        data_samples=_detection_samples(size),
        mode='tensor',
    )


def _backbone(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get('backbone', config)


def _is_detector(model: nn.Module) -> bool:
    modules = (base.__module__ for base in type(model).__mro__)
    return any(name.startswith('mmdet.models.detectors') for name in modules)


def _detection_samples(size: tuple[int, int]) -> list:
    # Installed, or there would be no detector.
    from mmdet.structures import DetDataSample

    shapes = dict.fromkeys(
        ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), size
    )
    return [DetDataSample(metainfo=dict(shapes, scale_factor=(1.0, 1.0)))]
