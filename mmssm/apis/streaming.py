"""Phase recognition frame by frame, as the frames arrive."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from numpy.typing import NDArray
from torch import Tensor, nn

from mmssm.apis.loading import load_streaming_parts


class StreamResult(NamedTuple):
    """What is known after one frame of a stream.

    Attributes:
        frame_idx (int): Index of the frame since the last reset.
        time_s (float): Its time in seconds, ``frame_idx / fps``.
        phase (int): The most probable phase.
        phase_name (str): Its name.
        probabilities (array): float32 ``(phases,)``.
        intensity (float or None): Transition intensity lambda in 0..1, mean
            over layers; None if the temporal model has none.
        latency_ms (float): Time from the frame to this result.
    """

    frame_idx: int
    time_s: float
    phase: int
    phase_name: str
    probabilities: NDArray
    intensity: float | None
    latency_ms: float


class StreamingSession:
    """Run a phase recognizer on a stream of frames, at a fixed cost each.

    The numbers are those of clip mode (``tools/test.py``) for the same
    frames. The session holds everything that is remembered between frames;
    its size does not grow with the video.

    Args:
        model (nn.Module): A phase recognizer; it is put into evaluation mode.
        pipeline (Callable or Sequence, optional): Transforms of the frames as
            in the test pipeline (configs or one callable on the dict of a
            clip); those that load files are left out. Default: None, frames
            go to the model at the size they come in.
        classes (Sequence[str], optional): Names of the phases.
            Default: 'phase 0', 'phase 1', ...
        fps (float): Frames per second that :meth:`step` is given, the rate
            the model was trained at. Default: 1.0.
        device (str or torch.device, optional): Where the model is moved.
            Default: where it is.
        palette (Sequence, optional): RGB colour (0..255) of every phase, kept
            for drawing. Default: None.

    Raises:
        ValueError: If ``classes`` does not fit the model or ``fps`` is not
            a positive, finite number.

    Example:
        >>> session = StreamingSession.from_config(  # doctest: +SKIP
        ...     'config.py', 'checkpoint.pth')
        >>> for frame in frames:  # doctest: +SKIP
        ...     result = session.step(frame)
        ...     print(result.time_s, result.phase_name)
    """

    def __init__(
        self,
        model: nn.Module,
        pipeline: Callable[[dict], dict] | Sequence | None = None,
        classes: Sequence[str] | None = None,
        fps: float = 1.0,
        device: str | torch.device | None = None,
        palette: Sequence[Sequence[int]] | None = None,
    ) -> None:
        num_classes = int(model.num_classes)
        if classes is None:
            classes = [f'phase {phase}' for phase in range(num_classes)]
        if len(classes) != num_classes:
            raise ValueError(
                f'`classes` has {len(classes)} names; expected '
                f'{num_classes}, the number of phases of the model'
            )
        if not (math.isfinite(fps) and fps > 0):
            raise ValueError(
                f'`fps` is {fps}; expected a positive, finite number'
            )
        if device is not None:
            model = model.to(device)
        self.model = model
        self.pipeline = _build_pipeline(pipeline)
        self.classes = tuple(classes)
        self.fps = float(fps)
        self.palette = palette
        self.reset()

    @classmethod
    def from_config(
        cls,
        config: str | Path | Config,
        checkpoint: str | Path,
        device: str | torch.device = 'cpu',
    ) -> 'StreamingSession':
        """Build a session from a config and the checkpoint of a run.

        Names of the phases come from the checkpoint, otherwise from the
        dataset of the config; the frame rate and the transforms from the
        config's test dataset.

        Args:
            config (str, Path or Config): The config: a path, a path inside
                the installed package (``configs/...``) or ``package::path``.
            checkpoint (str or Path): Weights saved with that config.
            device (str or torch.device): Where to run. Default: 'cpu'.

        Returns:
            StreamingSession: Ready for the first frame.

        Raises:
            FileNotFoundError: If a file is missing.
            RuntimeError: If the device is not there.
            ValueError: If config and checkpoint do not belong together, with
                the keys that differ.
        """
        parts = load_streaming_parts(config, checkpoint, device)
        return cls(
            model=parts.model,
            pipeline=parts.pipeline,
            classes=parts.classes,
            fps=parts.fps,
            palette=parts.palette,
        )

    @property
    def state(self) -> Any:
        """TemporalState: All that is remembered of the frames so far."""
        return self._state

    @property
    def device(self) -> torch.device:
        """torch.device: Where the model runs."""
        return next(self.model.parameters()).device

    def reset(self) -> None:
        """Forget all frames: the next one is the first of a new video.

        The model is put into evaluation mode.
        """
        self.model.eval()
        with torch.inference_mode():
            self._state = self.model.init_stream(batch_size=1)
        self._frame_idx = 0
        self._sizes: tuple[torch.Size, torch.Size] | None = None

    def step(self, frame: NDArray | Tensor) -> StreamResult:
        """Recognize the phase of the next frame.

        A frame that is refused leaves the stream as it was.

        Args:
            frame (array or Tensor): uint8 RGB image: array ``(height, width,
                3)``, or tensor ``(3, height, width)`` or ``(height, width,
                3)``.

        Returns:
            StreamResult: Phase, probabilities, lambda and latency.

        Raises:
            TypeError: If the frame is no uint8 array or tensor.
            ValueError: If it has the wrong shape, or another size than the
                frames before and no transform that resizes it.
            RuntimeError: If the model gives NaN, or was put into training
                mode since the last reset.
        """
        if self.model.training:
            raise RuntimeError(
                'the model is in training mode, where dropout and statistics '
                'of the batch change its numbers; expected evaluation mode. '
                'Call model.eval() to go on with this video, or reset() to '
                'start a new one'
            )
        start = time.perf_counter()
        raw = _as_uint8_frame(frame)
        with torch.inference_mode():
            frames = self._transform(raw)
            inputs = self.model.data_preprocessor.normalize(
                frames.to(self.device)
            )
            output = self.model.step(inputs, self._state)
            scores = output.scores[0].float().cpu().numpy()
            intensity = (
                None
                if output.intensity is None
                else float(output.intensity[0])
            )
        if not np.isfinite(scores).all():
            raise RuntimeError(
                f'the model gives NaN or infinity at frame {self._frame_idx}; '
                'its weights are broken, or it diverged in training'
            )
        phase = int(scores.argmax())
        result = StreamResult(
            frame_idx=self._frame_idx,
            time_s=self._frame_idx / self.fps,
            phase=phase,
            phase_name=self.classes[phase],
            probabilities=scores,
            intensity=intensity,
            latency_ms=(time.perf_counter() - start) * 1e3,
        )
        self._state = output.state
        self._sizes = (raw.shape, frames.shape)
        self._frame_idx += 1
        return result

    def _transform(self, raw: Tensor) -> Tensor:
        """Apply the pipeline to one frame ``(1, 3, height, width)``."""
        frames = raw
        if self.pipeline is not None:
            # The seed makes even a random transform repeatable.
            clip = dict(frames=raw, frame_idx=self._frame_idx, seed=0)
            frames = self.pipeline(clip)['frames']
        if self._sizes is not None and frames.shape != self._sizes[1]:
            (old_raw, old), new = self._sizes, frames.shape
            raise ValueError(
                f'frame {self._frame_idx} has size {_size(raw.shape)} '
                f'({_size(new)} after the transforms); the frames before had '
                f'{_size(old_raw)} ({_size(old)}). Expected one size after '
                'the transforms: add a Resize to a fixed (height, width) to '
                'the pipeline, or call reset() to start a new video'
            )
        return frames


def _size(shape: torch.Size) -> str:
    return f'{shape[-1]}x{shape[-2]}'


def _build_pipeline(
    pipeline: Callable[[dict], dict] | Sequence | None,
) -> Callable[[dict], dict] | None:
    if pipeline is None or callable(pipeline):
        return pipeline
    # Here, since loading images needs OpenCV and a stream does not.
    from mmssm.datasets.transforms import ClipPipeline

    return ClipPipeline(pipeline).without_loading()


def _as_uint8_frame(frame: NDArray | Tensor) -> Tensor:
    """Check one RGB image and make it ``(1, 3, height, width)``."""
    if not isinstance(frame, (np.ndarray, Tensor)):
        raise TypeError(
            f'`frame` is a {type(frame).__name__}; expected a uint8 RGB '
            'numpy array (height, width, 3) or tensor (3, height, width)'
        )
    _check_dtype(frame)
    shape = tuple(frame.shape)
    is_tensor = isinstance(frame, Tensor)
    channels_first = is_tensor and len(shape) == 3 and shape[0] == 3
    if not channels_first and (len(shape) != 3 or shape[-1] != 3):
        raise ValueError(
            f'`frame` has shape {shape}; expected '
            + ('(3, height, width) or ' if is_tensor else '')
            + f'(height, width, 3).{_shape_remedy(shape)}'
        )
    if 0 in shape:
        raise ValueError(f'`frame` has shape {shape}: it has no pixels')
    # A copy: transforms may work in place, and arrays may be flipped views.
    image = frame.clone() if is_tensor else torch.from_numpy(np.array(frame))
    if not channels_first:
        image = image.permute(2, 0, 1)
    return image.contiguous()[None]


def _check_dtype(frame: NDArray | Tensor) -> None:
    if frame.dtype in (torch.uint8, np.uint8):
        return
    remedy = 'Convert it to 8-bit RGB'
    if isinstance(frame, Tensor):
        is_float = frame.is_floating_point()
        # numpy has no bfloat16.
        values = frame.detach().cpu().float()
    else:
        is_float, values = frame.dtype.kind == 'f', frame
    if is_float:
        values = np.asarray(values, dtype=np.float32)
        num_nan = int(np.isnan(values).sum())
        num_inf = int(np.isinf(values).sum())
        if num_nan or num_inf:
            raise ValueError(
                f'`frame` has {num_nan} NaN and {num_inf} infinite values '
                f'(dtype {frame.dtype}); expected uint8 pixels. Look for the '
                'step before that made them'
            )
        if values.size and values.min() >= 0 and values.max() <= 1:
            remedy = (
                'It seems to be in 0..1: convert it with '
                "(frame * 255).round().astype('uint8')"
            )
        else:
            remedy = (
                'If it is in 0..255, convert it with '
                "frame.round().clip(0, 255).astype('uint8'); do not "
                'normalise it, the model does'
            )
    raise TypeError(
        f'`frame` has dtype {frame.dtype}; expected uint8. {remedy}'
    )


def _shape_remedy(shape: tuple[int, ...]) -> str:
    if len(shape) == 4:
        return ' Give one frame at a time, without a batch dimension'
    if len(shape) == 2:
        return ' For a grey image, repeat the channel three times'
    if len(shape) == 3 and shape[0] == 3:
        return ' Move the channels: frame.transpose(1, 2, 0)'
    if len(shape) == 3 and shape[-1] == 4:
        return ' Drop the alpha channel: frame[..., :3]'
    return ''
