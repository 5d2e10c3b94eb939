"""Stack lanes of frames, move them and normalise them."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from mmssm.registry import MODELS


@MODELS.register_module()
class PhaseDataPreprocessor(BaseDataPreprocessor):
    """Turn uint8 RGB frames of several lanes into one float batch.

    Args:
        mean (Sequence[float]): Per channel, in 0..255 RGB. Default:
            ImageNet's.
        std (Sequence[float]): Per channel, in 0..255 RGB. Default:
            ImageNet's.
        non_blocking (bool): Whether copies to the device may overlap.
    """

    def __init__(
        self,
        mean: Sequence[float] = (123.675, 116.28, 103.53),
        std: Sequence[float] = (58.395, 57.12, 57.375),
        non_blocking: bool = False,
    ) -> None:
        super().__init__(non_blocking=non_blocking)
        self.register_buffer(
            'mean', torch.tensor(mean).view(3, 1, 1), persistent=False
        )
        self.register_buffer(
            'std', torch.tensor(std).view(3, 1, 1), persistent=False
        )

    def normalize(self, frames: Tensor) -> Tensor:
        """Normalise uint8 RGB frames ``(..., 3, height, width)`` to float."""
        return (frames.to(self.mean.dtype) - self.mean) / self.std

    def forward(self, data: dict[str, Any], training: bool = False) -> dict:
        """Collate one batch.

        Args:
            data (dict): ``inputs``, a list with one uint8 tensor ``(clips,
                clip_len, 3, height, width)`` per lane (or the stacked
                tensor), and ``data_samples``.
            training (bool): Unused; augmentation belongs to the dataset.

        Returns:
            dict: ``inputs``, a float tensor ``(lanes, clips, clip_len, 3,
            height, width)``, and ``data_samples``.

        Raises:
            ValueError: If the lanes have different shapes.
        """
        data = self.cast_data(data)
        inputs = data['inputs']
        if not isinstance(inputs, Tensor):
            shapes = {tuple(lane.shape) for lane in inputs}
            if len(shapes) > 1:
                raise ValueError(
                    f'lanes have frames of different shapes: {shapes}; add a '
                    'Resize or a crop to the pipeline so that all frames '
                    'have one size'
                )
            inputs = torch.stack(tuple(inputs))
        return {**data, 'inputs': self.normalize(inputs)}
