"""What a causal temporal model is: clip mode and step mode of one thing."""

import dataclasses
from abc import ABCMeta, abstractmethod
from typing import NamedTuple

import torch
from mmengine.model import BaseModule
from torch import Tensor

from mmssm.structures.temporal_state import ClipClockState


class TemporalOutput(NamedTuple):
    """What a temporal model returns for a clip or for a frame.

    Attributes:
        hidden (Tensor): Features ``(batch, clip, d_model)`` of a clip, or
            ``(batch, d_model)`` of a frame.
        state (ClipClockState): Carried state after it.
        intensity_logits (Tensor or None): Logits of the transition intensity
            lambda, ``(layers, batch, clip)`` or ``(layers, batch)``; None if
            the model has none.
    """

    hidden: Tensor
    state: ClipClockState
    intensity_logits: Tensor | None = None


class BaseTemporalModel(BaseModule, metaclass=ABCMeta):
    """Causal temporal model over frame features, with explicit state.

    A model defines what happens to a *clip* of consecutive frames
    (:meth:`forward_clip`), to one *frame* inside a clip (:meth:`step_frame`)
    and at the *end of a clip* (:meth:`close_clip`). This class makes of them
    the two modes that callers use, which must give the same numbers:

    - ``forward(x, state)``: a whole clip, used in training and testing;
    - ``step(x_t, state)``: the next frame of a stream.

    A clip is the unit of the definition: what a model restarts at a clip
    (chunk grid, fast path, padding of a convolution) it restarts in both
    modes. To add a model, subclass, register and name it in a config; the
    recognizer, the sampler and the streaming session need no change.

    Args:
        in_channels (int): Width of the frame features.
        d_model (int): Width of the output.
        carry_state (bool): Whether state is carried from clip to clip. False
            gives the no-memory baseline: every clip starts from zero.
            Default: True.
        init_cfg (dict, optional): mmengine initialisation config.
    """

    def __init__(
        self,
        in_channels: int,
        d_model: int,
        carry_state: bool = True,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.in_channels = in_channels
        self.d_model = d_model
        self.carry_state = carry_state

    @abstractmethod
    def init_state(
        self,
        batch_size: int,
        clip_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> ClipClockState:
        """Make the initial state: all zeros.

        Args:
            batch_size (int): Number of streams.
            clip_len (int, optional): Frames after which :meth:`step` ends a
                clip by itself. None: the caller calls :meth:`end_clip`.
            device (torch.device, optional): Default: that of the parameters.
            dtype (torch.dtype, optional): Dtype of stored frame features.
                Default: that of the parameters.

        Returns:
            ClipClockState: State before the first frame.
        """

    @abstractmethod
    def forward_clip(self, x: Tensor, state: ClipClockState) -> TemporalOutput:
        """Run a clip ``(batch, clip, in_channels)``, closed at its end."""

    @abstractmethod
    def step_frame(self, x: Tensor, state: ClipClockState) -> TemporalOutput:
        """Run one frame ``(batch, in_channels)`` inside the open clip."""

    @abstractmethod
    def close_clip(self, state: ClipClockState) -> ClipClockState:
        """Do what the definition does at the end of a clip."""

    def forward(
        self, x: Tensor, state: ClipClockState | None = None
    ) -> TemporalOutput:
        """Run one clip.

        Args:
            x (Tensor): Frame features ``(batch, clip, in_channels)``. A clip
                of no frames returns the state unchanged.
            state (ClipClockState, optional): State after the clip before.
                Default: the initial state.

        Returns:
            TemporalOutput: Features ``(batch, clip, d_model)`` and the state
            to carry into the next clip.

        Raises:
            TypeError: If ``state`` is no state.
            ValueError: If ``x`` has the wrong shape, if the batch of
                ``state`` differs, if ``state`` is in the middle of a clip, or
                if ``x`` is longer than ``state.clip_len``.
        """
        self._check(x, state, ndim=3, names='(batch, clip, in_channels)')
        if state is None:
            state = self.init_state(x.shape[0], device=x.device, dtype=x.dtype)
        if state.frame_in_clip:
            raise ValueError(
                f'`state` is in the middle of a clip (frame '
                f'{state.frame_in_clip}); a clip can start only after '
                '`end_clip(state)`'
            )
        if state.clip_len is not None and x.shape[1] > state.clip_len:
            raise ValueError(
                f'`x` has {x.shape[1]} frames, `state` is of clips of '
                f'{state.clip_len}: a stream would end the clip before. Give '
                'one clip at a time'
            )
        hidden, new_state, logits = self.forward_clip(x, state)
        if not self.carry_state:
            new_state = new_state.forget()
        return TemporalOutput(hidden, new_state, logits)

    def step(
        self, x: Tensor, state: ClipClockState | None = None
    ) -> TemporalOutput:
        """Run the next frame of a stream, at a fixed cost.

        Args:
            x (Tensor): Features of one frame, ``(batch, in_channels)``.
            state (ClipClockState, optional): State after the frame before.
                Default: the initial state, with no ``clip_len``.

        Returns:
            TemporalOutput: Features ``(batch, d_model)`` and the new state.
            The clip is ended when ``state.clip_len`` frames were stepped.

        Raises:
            ValueError: If ``x`` has the wrong shape or the batch of ``state``
                differs.
        """
        self._check(x, state, ndim=2, names='(batch, in_channels)')
        if state is None:
            state = self.init_state(x.shape[0], device=x.device, dtype=x.dtype)
        hidden, state, logits = self.step_frame(x, state)
        state = dataclasses.replace(
            state, frame_in_clip=state.frame_in_clip + 1
        )
        if state.frame_in_clip == state.clip_len:
            state = self.end_clip(state)
        return TemporalOutput(hidden, state, logits)

    def end_clip(self, state: ClipClockState) -> ClipClockState:
        """End the open clip of a stream; between clips this does nothing.

        Args:
            state (ClipClockState): State after the last frame of the clip.

        Returns:
            ClipClockState: The state that clip mode returns after that clip.
        """
        if not state.frame_in_clip:
            return state
        state = dataclasses.replace(self.close_clip(state), frame_in_clip=0)
        return state if self.carry_state else state.forget()

    def _check(
        self, x: Tensor, state: ClipClockState | None, ndim: int, names: str
    ) -> None:
        if x.ndim != ndim or x.shape[-1] != self.in_channels:
            raise ValueError(
                f'`x` has shape {tuple(x.shape)}; expected {names} with '
                f'in_channels = {self.in_channels}'
            )
        if state is None:
            return
        if not isinstance(state, ClipClockState):
            raise TypeError(
                f'`state` is a {type(state).__name__}; expected what '
                '`init_state` or the call before returned'
            )
        batch_size = state.batch_size  # walks through all tensors
        if batch_size is not None and batch_size != x.shape[0]:
            raise ValueError(
                f'`state` is of {batch_size} streams, `x` of {x.shape[0]}'
            )
