"""Calls of the operators at the sizes of published models.

For checks and timings on a GPU; on a CPU they run too, at a smaller batch.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mmssm import ops


@dataclasses.dataclass
class OpCase:
    """One call of an operator.

    Attributes:
        name (str): Operator and size.
        function (Callable): Operator; takes ``tensors`` and ``options``.
        tensors (dict[str, Tensor]): Arguments that get gradients.
        options (dict): Other arguments.
    """

    name: str
    function: Callable[..., Any]
    tensors: dict[str, Tensor]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def outputs(self, backend: str) -> tuple[Tensor, ...]:
        """Call the operator on a backend."""
        out = self.function(**self.tensors, **self.options, backend=backend)
        return (out,) if isinstance(out, Tensor) else tuple(out)

    def outputs_and_gradients(self, backend: str) -> tuple[Tensor, ...]:
        """Call the operator, then its adjoint with ones."""
        outputs = self.outputs(backend)
        leaves = list(self.tensors.values())
        ones = [torch.ones_like(out) for out in outputs]
        return outputs + torch.autograd.grad(outputs, leaves, ones)


class _Draw:
    """Random tensors that need gradients."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.device, self.dtype = device, dtype

    def data(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Tokens and what is read from them, in the dtype of the case."""
        return self._finish(self._normal(shape) * scale, self.dtype)

    def rate(self, *shape: int) -> Tensor:
        """Step sizes between 0 and 0.1."""
        return self._finish(
            torch.rand(shape, generator=self.generator) * 0.1, self.dtype
        )

    def parameter(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Parameters, in float32."""
        return self._finish(self._normal(shape) * scale, torch.float32)

    def decay(self, *shape: int) -> Tensor:
        """Negative decay rates, in float32."""
        return self._finish(-self._normal(shape).exp(), torch.float32)

    def _normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def _finish(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(self.device, dtype).requires_grad_()


def real_size_cases(
    device: str, dtype: torch.dtype, batch: int = 64
) -> Iterator[OpCase]:
    """Make a case per operator.

    Args:
        device (str): Where the tensors are.
        dtype (torch.dtype): Of tokens; parameters are float32.
        batch (int): Number of images; videos and states have an eighth.

    Yields:
        OpCase: One case; only one is held at a time.
    """
    makers = (
        _selective_scan,
        _pole_scan,
        _pole_denominator,
        _causal_conv1d,
        _ssd_chunk_scan,
        _cayley_rotate,
        _rms_norm_gated,
    )
    for make in makers:
        yield make(_Draw(device, dtype), batch)


def _selective_scan(draw: _Draw, batch: int) -> OpCase:
    dim, length, state = 384, 197, 16
    tensors = dict(
        u=draw.data(batch, dim, length),
        delta=draw.rate(batch, dim, length),
        A=draw.decay(dim, state),
        B=draw.data(batch, state, length),
        C=draw.data(batch, state, length),
        D=draw.parameter(dim),
        z=draw.data(batch, dim, length),
        delta_bias=draw.parameter(dim),
    )
    name = f'selective_scan ({batch}, {dim}, {length}), state {state}'
    options = dict(delta_softplus=True, return_last_state=True)
    return OpCase(name, ops.selective_scan, tensors, options)


def _pole_scan(draw: _Draw, batch: int) -> OpCase:
    length, channels, groups, order = 197, 384, 12, 5
    tensors = dict(
        eta=draw.data(batch, length, channels),
        q=draw.parameter(batch, length, groups, order, scale=0.1),
        x=draw.data(batch, length, channels),
        D=draw.parameter(channels),
        z=draw.data(batch, length, channels),
    )
    name = (
        f'pole_scan ({batch}, {length}, {channels}), {groups} groups, order '
        f'{order}'
    )
    options = dict(return_final_history=True)
    return OpCase(name, ops.pole_scan, tensors, options)


def _pole_denominator(draw: _Draw, batch: int) -> OpCase:
    length, groups, pairs, reals = 197, 12, 2, 1
    tensors = dict(
        rho_hat=draw.parameter(groups, pairs),
        theta_hat=draw.parameter(groups, pairs),
        real_rho_hat=draw.parameter(groups, reals),
        sign_hat=draw.parameter(groups, reals),
        rho_mod=draw.data(batch, length, 1),
        theta_mod=draw.data(batch, length, 1),
    )
    name = f'pole_denominator ({batch}, {length}), {groups} groups, order 5'
    return OpCase(name, ops.pole_denominator, tensors)


def _causal_conv1d(draw: _Draw, batch: int) -> OpCase:
    length, dim, width = 197, 384, 4
    tokens = draw.data(batch, length, dim)
    tensors = dict(
        x=tokens.detach().mT.requires_grad_(),
        weight=draw.parameter(dim, width),
        bias=draw.parameter(dim),
    )
    name = f'causal_conv1d ({batch}, {dim}, {length}), width {width}, silu'
    options = dict(activation='silu')
    return OpCase(name, ops.causal_conv1d, tensors, options)


def _ssd_chunk_scan(draw: _Draw, batch: int) -> OpCase:
    videos, length, heads, headdim, state = max(batch // 8, 1), 512, 24, 64, 64
    tensors = dict(
        x=draw.data(videos, length, heads, headdim),
        dt=draw.rate(videos, length, heads),
        A=draw.decay(heads),
        B=draw.data(videos, length, heads, state),
        C=draw.data(videos, length, heads, state),
        D=draw.parameter(heads),
        initial_states=draw.parameter(videos, heads, headdim, state),
    )
    name = (
        f'ssd_chunk_scan ({videos}, {length}, {heads}, {headdim}), state '
        f'{state}'
    )
    options = dict(chunk_size=64, return_final_states=True)
    return OpCase(name, ops.ssd_chunk_scan, tensors, options)


def _cayley_rotate(draw: _Draw, batch: int) -> OpCase:
    videos, heads, headdim, state, rank = max(batch // 8, 1), 24, 64, 64, 16
    scale = state**-0.5
    tensors = dict(
        state=draw.parameter(videos, heads, headdim, state),
        U=draw.parameter(videos, heads, state, rank, scale=scale),
        V=draw.parameter(videos, heads, state, rank, scale=scale),
        theta=draw.parameter(videos, heads, rank),
    )
    name = (
        f'cayley_rotate ({videos}, {heads}, {headdim}, {state}), rank {rank}'
    )
    return OpCase(name, ops.cayley_rotate, tensors)


def _rms_norm_gated(draw: _Draw, batch: int) -> OpCase:
    length, dim = 128, 1536
    tensors = dict(
        x=draw.data(batch, length, dim),
        weight=draw.parameter(dim),
        z=draw.data(batch, length, dim),
    )
    name = f'rms_norm_gated ({batch}, {length}, {dim})'
    return OpCase(name, ops.rms_norm_gated, tensors)
