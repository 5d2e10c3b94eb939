"""Decode the frames of a clip."""

import cv2
import numpy as np
import torch

from mmssm.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadFrames:
    """Decode ``frame_paths`` into ``frames``.

    Adds ``frames``, a uint8 RGB tensor ``(num_frames, 3, height, width)``.

    Raises:
        FileNotFoundError: If an image file is missing.
        ValueError: If a file is no readable image, or the frames of a clip
            differ in size.
    """

    loads_frames = True

    def __call__(self, results: dict) -> dict:
        paths = results['frame_paths']
        frames = None
        for number, path in enumerate(paths):
            image = self._read(path)
            if frames is None:
                frames = np.empty((len(paths), *image.shape), dtype=np.uint8)
            if image.shape != frames.shape[1:]:
                raise ValueError(
                    f'{path} is {image.shape[1]}x{image.shape[0]} pixels; '
                    f'expected {frames.shape[2]}x{frames.shape[1]} as '
                    f'{paths[0]}. Extract all frames of a video at one size'
                )
            cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=frames[number])
        tensor = torch.from_numpy(frames).permute(0, 3, 1, 2)
        results['frames'] = tensor.contiguous()
        return results

    @staticmethod
    def _read(path: str) -> np.ndarray:
        # imdecode rather than imread: it can tell a missing file from a
        # damaged one and takes any path the system takes
        try:
            with open(path, 'rb') as file:
                data = np.frombuffer(file.read(), dtype=np.uint8)
        except FileNotFoundError:
            raise FileNotFoundError(f'frame not found: {path}') from None
        image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
        if image is None:
            raise ValueError(
                f'{path} ({data.size} bytes) is no readable image; extract '
                'it again'
            )
        return image

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'
