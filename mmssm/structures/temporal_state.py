"""Explicit carried state of causal temporal models."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self


def _map_tensors(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, TemporalState):
        return value.map(fn)
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(item, fn) for item in value)
    return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, TemporalState):
        return value.tensors()
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    return []


@dataclasses.dataclass
class TemporalState:
    """Base of every carried state: a tree of tensors, batch first.

    Subclasses are dataclasses whose fields are tensors of shape
    ``(batch, ...)``, other states, tuples of these, or plain Python numbers
    shared by the whole batch (frame counters). All zeros is the initial
    state of every model, so :meth:`reset` needs no model.

    States are values: models return new ones and never write into the one
    they were given, so a caller may keep, copy or replay any of them.
    """

    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """Apply ``fn`` to every tensor of the tree.

        Args:
            fn (Callable): Maps a tensor ``(batch, ...)`` to another.

        Returns:
            TemporalState: A new state of the same class.
        """
        fields = {
            field.name: _map_tensors(getattr(self, field.name), fn)
            for field in dataclasses.fields(self)
        }
        return dataclasses.replace(self, **fields)

    def tensors(self) -> list[Tensor]:
        """List every tensor of the tree, in field order."""
        return [
            t
            for field in dataclasses.fields(self)
            for t in _tensors(getattr(self, field.name))
        ]

    @property
    def batch_size(self) -> int | None:
        """Number of streams, or None for a state without tensors."""
        tensors = self.tensors()
        return tensors[0].shape[0] if tensors else None

    def nbytes(self) -> int:
        """Memory of all tensors, in bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def detach(self) -> Self:
        """Cut the graph: what a truncation window does at its end."""
        return self.map(torch.Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast every tensor, with the arguments of `Tensor.to`."""
        return self.map(lambda t: t.to(*args, **kwargs))

    def select(self, index: Tensor | slice | list[int]) -> Self:
        """Take some streams of the batch.

        Args:
            index (Tensor, slice or list): Index into the batch dimension.

        Returns:
            TemporalState: State of the chosen streams, in that order.
        """
        if isinstance(index, list):
            index = torch.tensor(index, dtype=torch.long)
        return self.map(lambda t: t[index])

    def forget(self) -> Self:
        """Return the initial state: zeros, and no open chunk."""
        return _reset_counters(self.map(torch.zeros_like))

    def reset(self, mask: Tensor) -> Self:
        """Return some streams to the initial state.

        Args:
            mask (Tensor): Bool ``(batch,)``; True where a stream starts anew.

        Returns:
            TemporalState: Zeros where ``mask``, this state elsewhere, also
            when the masked lanes hold NaN. Gradients of the kept lanes flow.

        Raises:
            TypeError: If ``mask`` is no tensor.
            ValueError: If it is not bool of shape ``(batch,)``.
        """
        batch_size = self.batch_size
        if not isinstance(mask, Tensor):
            raise TypeError(
                f'`mask` is a {type(mask).__name__}; expected a bool tensor '
                'of shape (batch,)'
            )
        if mask.dtype != torch.bool or mask.ndim != 1:
            raise ValueError(
                f'`mask` is {mask.dtype} of shape {tuple(mask.shape)}; '
                'expected torch.bool of shape (batch,)'
            )
        if batch_size is not None and mask.shape[0] != batch_size:
            raise ValueError(
                f'`mask` has {mask.shape[0]} entries for a state of '
                f'{batch_size} streams'
            )

        if not bool(mask.any()):
            return self

        def zero(t: Tensor) -> Tensor:
            lanes = mask.to(t.device).view(-1, *[1] * (t.ndim - 1))
            return t.masked_fill(lanes, 0)

        return self.map(zero)


@dataclasses.dataclass
class ClipClockState(TemporalState):
    """A state that also knows where in the current clip the stream is.

    Attributes:
        frame_in_clip (int): Frames already stepped in the open clip; 0
            between clips. Shared by all streams of the batch: they advance
            in lockstep.
        clip_len (int or None): Length at which ``step`` ends a clip by
            itself; None leaves that to the caller (``end_clip``).
    """

    frame_in_clip: int = 0
    clip_len: int | None = None

    def reset(self, mask: Tensor) -> Self:
        """Return some streams to the initial state.

        Resetting every stream also resets the clip clock. Inside a clip a
        part of the streams cannot be reset, since the clock is shared.

        Args:
            mask (Tensor): Bool ``(batch,)``; True where a stream starts anew.

        Returns:
            ClipClockState: The state with those streams at zero.

        Raises:
            ValueError: If ``mask`` is malformed, or if it names some but not
                all streams in the middle of a clip.
        """
        state = super().reset(mask)
        if bool(mask.all()):
            return dataclasses.replace(state.forget(), frame_in_clip=0)
        if self.frame_in_clip and bool(mask.any()):
            raise ValueError(
                'cannot reset some streams in the middle of a clip (frame '
                f'{self.frame_in_clip}): they share one clip clock. Reset all '
                'of them, wait for the end of the clip, or give each stream '
                'a state of its own'
            )
        return state


def _reset_counters(state: Any) -> Any:
    """Zero every ``num_*`` counter of a tree of states."""
    if isinstance(state, (list, tuple)):
        return type(state)(_reset_counters(item) for item in state)
    if not isinstance(state, TemporalState):
        return state
    fields = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        is_counter = field.name.startswith('num_') and isinstance(value, int)
        fields[field.name] = 0 if is_counter else _reset_counters(value)
    return dataclasses.replace(state, **fields)
