"""What a parity case is: one call of an operator, on any backend."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmssm import ops

Layout = Callable[[Tensor], Tensor]
HALVES = (torch.float16, torch.bfloat16)


class Draw:
    """Random tensors in float64, the same ones in every run."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(
            shape, generator=self.generator, dtype=torch.float64
        )

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        sample = torch.rand(
            shape, generator=self.generator, dtype=torch.float64
        )
        return low + (high - low) * sample


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        op (str): Name of the public function.
        name (str): What the case is about.
        make (Callable): Returns the tensor arguments by name, in float64 on
            the CPU. Integer tensors are passed on as they are.
        options (dict): The other arguments.
        layouts (dict): Memory layouts of arguments; the others are
            contiguous.
        parameters (tuple[str, ...]): Arguments that stay in float32 where
            the data are in half precision.
        dtypes (dict): Dtypes of single arguments, whatever the others have.
        runs_in (tuple[str, ...]): Dtypes of the data.
        interpreted (bool): Whether it is small enough for the interpreter of
            Triton.
        large (bool): Whether it is too large for a CPU.
    """

    op: str
    name: str
    make: Callable[[], dict[str, Tensor]]
    options: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    runs_in: tuple[str, ...] = ('float64', 'float32')
    interpreted: bool = True
    large: bool = False

    def __str__(self) -> str:
        return f'{self.op}-{self.name}'

    def tensors(
        self, dtype: torch.dtype, device: str = 'cpu'
    ) -> dict[str, Tensor]:
        """Return the tensor arguments in their dtypes and layouts."""
        result = {}
        for name, tensor in self.make().items():
            tensor = tensor.to(device)
            if tensor.is_floating_point():
                tensor = tensor.to(self._dtype(name, dtype))
            result[name] = self.layouts.get(name, torch.clone)(tensor)
        return result

    def call(
        self, tensors: dict[str, Tensor], backend: str | None
    ) -> tuple[Tensor, ...]:
        """Call the operator; always returns a tuple."""
        function = getattr(ops, self.op)
        result = function(**tensors, **self.options, backend=backend)
        return result if isinstance(result, tuple) else (result,)

    def _dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        if name in self.dtypes:
            return self.dtypes[name]
        if name in self.parameters and dtype in HALVES:
            return torch.float32
        return dtype


def swapped(tensor: Tensor) -> Tensor:
    """Exchange the last two axes in memory: channels-last or -first."""
    return tensor.mT.contiguous().mT


def reordered(tensor: Tensor) -> Tensor:
    """Reverse the order of all axes in memory."""
    order = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(order).contiguous().permute(order)


def sliced(tensor: Tensor) -> Tensor:
    """Every second entry of a longer last axis."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


def part(axis: int) -> Layout:
    """Half of a tensor that is twice as wide, as from one projection."""

    def layout(tensor: Tensor) -> Tensor:
        return torch.cat((torch.zeros_like(tensor), tensor), axis).chunk(
            2, axis
        )[1]

    return layout


def expanded(*axes: int) -> Layout:
    """The first entry of each axis, repeated with stride 0."""

    def layout(tensor: Tensor) -> Tensor:
        first = tensor
        for axis in axes:
            first = first.narrow(axis, 0, min(1, tensor.shape[axis]))
        return first.clone().expand_as(tensor)

    return layout
