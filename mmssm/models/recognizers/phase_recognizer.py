"""Online phase recognizer: visual backbone, temporal model, head."""

import dataclasses
import logging
from typing import NamedTuple

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModel
from torch import Tensor

from mmssm.models.temporal.base import TemporalOutput
from mmssm.registry import MODELS
from mmssm.structures import ClipClockState, PhaseDataSample, TemporalState


@dataclasses.dataclass
class RecognizerState(TemporalState):
    """State of a stream: that of the temporal model and that of the head."""

    temporal: ClipClockState
    head: ClipClockState

    def reset(self, mask: Tensor) -> 'RecognizerState':
        """Return some streams to the initial state; see both parts."""
        return RecognizerState(
            self.temporal.reset(mask), self.head.reset(mask)
        )


class StreamOutput(NamedTuple):
    """What one frame of a stream gives.

    Attributes:
        scores (Tensor): Class probabilities, float32 ``(batch,
            num_classes)``.
        intensity (Tensor or None): Transition intensity lambda in 0..1, mean
            over layers, ``(batch,)``.
        state (RecognizerState): State after the frame.
    """

    scores: Tensor
    intensity: Tensor | None
    state: RecognizerState


@MODELS.register_module()
class PhaseRecognizer(BaseModel):
    """Recognise the phase of every frame from it and the frames before.

    Training and testing see windows of consecutive clips of several lanes
    (see :class:`PhaseDataSample`). The recognizer runs them clip by clip,
    carries the state of each lane to its next window, cut off from the
    gradient there (truncated backpropagation through time), and resets it
    where a lane starts a new video. So one window is one iteration of an
    ordinary mmengine loop.

    Args:
        temporal (dict): Config of the temporal model.
        head (dict): Config of the phase head.
        backbone (dict, optional): Config of the visual backbone, images ``(n,
            3, height, width)`` to a feature map, a feature vector or a tuple
            whose last entry is used. Default: ConvNeXt-T of timm.
        clip_len (int): Frames per clip, in training, testing and streaming.
            Default: 128.
        backbone_batch_size (int): Most images the backbone sees at once when
            there is no gradient. Default: 64.
        data_preprocessor (dict, optional): Default: PhaseDataPreprocessor
            with ImageNet's mean and std.
        init_cfg (dict, optional): mmengine initialisation config.

    Raises:
        ValueError: If ``clip_len`` is below 1.

    Source: SurgicalMamba (S. Oh, S. Sun, arXiv 2605.14889).
    """

    def __init__(
        self,
        temporal: dict,
        head: dict,
        backbone: dict | None = None,
        clip_len: int = 128,
        backbone_batch_size: int = 64,
        data_preprocessor: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if clip_len < 1:
            raise ValueError(f'`clip_len` = {clip_len}; expected >= 1')
        # Built here: in another scope than ours mmengine would not find it.
        preprocessor = MODELS.build(
            data_preprocessor or dict(type='mmssm.PhaseDataPreprocessor')
        )
        super().__init__(preprocessor, init_cfg)
        self.backbone = MODELS.build(
            backbone or dict(type='mmssm.TimmBackbone')
        )
        self.temporal = MODELS.build(temporal)
        self.head = MODELS.build(head)
        self.clip_len = clip_len
        self.backbone_batch_size = backbone_batch_size
        # State of the lanes between windows. Apart, so that a validation in
        # the middle of an epoch leaves the training lanes alone.
        self._carry: dict[str, tuple[int, RecognizerState]] = {}

    @property
    def num_classes(self) -> int:
        """Number of phases."""
        return self.head.num_classes

    def forward(
        self,
        inputs: Tensor,
        data_samples: list[PhaseDataSample] | None = None,
        mode: str = 'tensor',
    ) -> dict[str, Tensor] | list[PhaseDataSample] | Tensor:
        """Run a batch of windows.

        Args:
            inputs (Tensor): Normalised frames ``(lanes, clips, clip_len, 3,
                height, width)``.
            data_samples (list[PhaseDataSample], optional): One per lane;
                needed by 'loss' and 'predict'.
            mode (str): 'loss', 'predict' or 'tensor'.

        Returns:
            dict, list or Tensor: Losses; the samples with predictions; or
            logits ``(lanes, clips, clip_len, num_classes)`` of lanes that
            all start anew.

        Raises:
            ValueError: If shapes, samples or ``mode`` do not fit.
        """
        self._check_inputs(inputs, data_samples, mode)
        if mode == 'loss':
            return self.loss(inputs, data_samples)
        if mode == 'predict':
            return self.predict(inputs, data_samples)
        state = self.init_stream(inputs.shape[0])
        logits, _, _ = self._run_window(inputs, state, new_video=None)
        return logits

    def loss(
        self, inputs: Tensor, data_samples: list[PhaseDataSample]
    ) -> dict[str, Tensor]:
        """Compute the losses of one truncation window; see the head.

        Args:
            inputs (Tensor): As in :meth:`forward`.
            data_samples (list[PhaseDataSample]): One per lane.

        Returns:
            dict: Losses and the accuracy of the window.

        Raises:
            ValueError: If a label is beyond the head's phases, or if a lane
                continues a video that the recognizer has not seen.
        """
        logits, intensity = self._run_carried('loss', inputs, data_samples)
        labels = torch.stack([sample.gt_phase for sample in data_samples])
        if labels.numel() and int(labels.max()) >= self.num_classes:
            raise ValueError(
                f'the labels hold phase {int(labels.max())}, but the head '
                f'has phases 0 to {self.num_classes - 1}: set '
                "`model.head.num_classes` to the number of the dataset's "
                'classes'
            )
        return self.head.loss(logits, intensity, labels)

    def predict(
        self, inputs: Tensor, data_samples: list[PhaseDataSample]
    ) -> list[PhaseDataSample]:
        """Add ``pred_scores``, ``pred_phase`` and ``pred_intensity``."""
        logits, intensity = self._run_carried('predict', inputs, data_samples)
        scores = logits.float().softmax(-1)
        for lane, sample in enumerate(data_samples):
            sample.pred_scores = scores[lane]
            sample.pred_phase = scores[lane].argmax(-1)
            if intensity is not None:
                sample.pred_intensity = (
                    intensity[:, lane].float().sigmoid().mean(0)
                )
        return data_samples

    def init_stream(self, batch_size: int = 1) -> RecognizerState:
        """Make the state before the first frame of ``batch_size`` streams."""
        return RecognizerState(
            self.temporal.init_state(batch_size, self.clip_len),
            self.head.init_state(batch_size, self.clip_len),
        )

    def step(self, frames: Tensor, state: RecognizerState) -> StreamOutput:
        """Recognise the next frame of each stream, at a fixed cost.

        Gives the numbers of clip mode: after ``clip_len`` frames the clip is
        ended.

        Args:
            frames (Tensor): Normalised images ``(batch, 3, height, width)``;
                see :meth:`PhaseDataPreprocessor.normalize`.
            state (RecognizerState): From :meth:`init_stream` or the step
                before.

        Returns:
            StreamOutput: Probabilities, intensity and the new state.
        """
        features = self.extract_features(frames)
        out = self.temporal.step(features, state.temporal)
        logits = self.head.step(out.hidden, state.head)
        intensity = out.intensity_logits
        if intensity is not None:
            intensity = intensity.float().sigmoid().mean(0)
        return StreamOutput(
            logits.hidden.float().softmax(-1),
            intensity,
            RecognizerState(out.state, logits.state),
        )

    def extract_features(self, frames: Tensor) -> Tensor:
        """Map images ``(n, 3, height, width)`` to features ``(n, dim)``."""
        if torch.is_grad_enabled():
            return self._pool(self.backbone(frames))
        # Bounded memory: a window of a test video may hold many frames.
        parts = [
            self._pool(self.backbone(part))
            for part in frames.split(self.backbone_batch_size)
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    @staticmethod
    def _pool(features: Tensor | tuple[Tensor, ...]) -> Tensor:
        if isinstance(features, (tuple, list)):
            features = features[-1]
        return features.mean((2, 3)) if features.ndim == 4 else features

    def _run_carried(
        self, mode: str, inputs: Tensor, data_samples: list[PhaseDataSample]
    ) -> tuple[Tensor, Tensor | None]:
        """Run a window from the state its lanes carry; keep the new one."""
        new_video = torch.tensor(
            [sample.metainfo['new_video'] for sample in data_samples]
        )
        state = self._carried_state(mode, new_video, data_samples)
        logits, intensity, state = self._run_window(inputs, state, new_video)
        self._carry[mode] = len(data_samples), state.detach()
        return logits, intensity

    def _carried_state(
        self,
        mode: str,
        new_video: Tensor,
        data_samples: list[PhaseDataSample],
    ) -> RecognizerState:
        lanes = len(data_samples)
        # A lane that starts empty has nothing to continue.
        continues = ~new_video[:, 0] & torch.tensor(
            [sample.metainfo['num_frames'][0] > 0 for sample in data_samples]
        )
        if not bool(continues.any()):
            return self.init_stream(lanes)
        held, state = self._carry.get(mode, (0, None))
        if held == lanes:
            return state
        lane = int(continues.nonzero()[0])
        meta = data_samples[lane].metainfo
        where = (
            f'lane {lane} continues {meta["video_id"][0]!r} at frame '
            f'{meta["frame_idx"][0]}'
        )
        if mode == 'loss' and not held:
            # mmengine resumes an iteration-based loop in the middle of an
            # epoch; the state of the lanes is not part of a checkpoint.
            print_log(
                f'{where}, but no state is carried: training was resumed in '
                'the middle of an epoch. Until their next video all lanes '
                'go on from zero.',
                logger='current',
                level=logging.WARNING,
            )
            return self.init_stream(lanes)
        raise ValueError(
            f'{where}, but the recognizer carries the state of {held} lanes '
            f'where the batch has {lanes}: windows must come from the first '
            'clip of a video on and in order (LaneBatchSampler deals them so)'
        )

    def _run_window(
        self,
        inputs: Tensor,
        state: RecognizerState,
        new_video: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, RecognizerState]:
        """Run the clips of a window in turn.

        Args:
            inputs (Tensor): ``(lanes, clips, clip_len, 3, height, width)``.
            state (RecognizerState): State before the first clip.
            new_video (Tensor, optional): Bool ``(lanes, clips)``.

        Returns:
            tuple: Logits ``(lanes, clips, clip_len, num_classes)``, the
            intensity logits ``(layers, lanes, clips, clip_len)`` or None,
            and the state after the last clip.
        """
        features = self.extract_features(inputs.flatten(0, 2))
        features = features.unflatten(0, inputs.shape[:3])
        logits, intensity = [], []
        for clip in range(inputs.shape[1]):
            if new_video is not None:
                state = state.reset(new_video[:, clip])
            out: TemporalOutput = self.temporal(
                features[:, clip], state.temporal
            )
            logits.append(self.head(out.hidden).hidden)
            if out.intensity_logits is not None:
                intensity.append(out.intensity_logits)
            state = RecognizerState(out.state, state.head)
        return (
            torch.stack(logits, 1),
            torch.stack(intensity, 2) if intensity else None,
            state,
        )

    def _check_inputs(
        self,
        inputs: Tensor,
        data_samples: list[PhaseDataSample] | None,
        mode: str,
    ) -> None:
        if mode not in ('loss', 'predict', 'tensor'):
            raise ValueError(
                f"`mode` is {mode!r}; expected 'loss', 'predict' or 'tensor'"
            )
        if inputs.ndim != 6 or inputs.shape[2] != self.clip_len:
            raise ValueError(
                f'`inputs` has shape {tuple(inputs.shape)}; expected (lanes, '
                'clips, clip_len, 3, height, width) with clip_len = '
                f'{self.clip_len}: `clip_len` of the model and of the '
                'dataset must agree'
            )
        if mode == 'tensor':
            return
        if data_samples is None or len(data_samples) != inputs.shape[0]:
            held = None if data_samples is None else len(data_samples)
            raise ValueError(
                f'{held} `data_samples` for {inputs.shape[0]} lanes; mode '
                f'{mode!r} needs one per lane'
            )
        lanes = [sample.metainfo.get('lane', -1) for sample in data_samples]
        dealt = [
            sample.metainfo.get('num_lanes', -1) for sample in data_samples
        ]
        if max(dealt) > 0 and lanes != list(range(max(dealt))):
            raise ValueError(
                f'the batch holds lanes {lanes} of {max(dealt)}; every batch '
                'must hold one window of each lane, in order'
            )
