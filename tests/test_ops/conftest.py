"""Inputs and helpers shared by the operator tests."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mmssm.testing import assert_close


@pytest.fixture(scope='session')
def make_ssd() -> Callable[..., dict[str, Tensor]]:
    """Factory of the tensor arguments of `ssd_chunk_scan`, by name."""

    def make(
        length: int,
        batch: int = 2,
        heads: int = 4,
        headdim: int = 5,
        groups: int = 2,
        state: int = 3,
        dtype: torch.dtype = torch.float64,
        D: str | None = 'head',
        gate: bool = True,
        bias: bool = True,
        carry: bool = True,
        seed: int = 0,
    ) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=dtype)

        inputs = {
            'x': normal(batch, length, heads, headdim),
            'dt': normal(batch, length, heads).abs(),
            'A': -normal(heads).exp(),
            'B': normal(batch, length, groups, state),
            'C': normal(batch, length, groups, state),
        }
        if D is not None:
            shape = (heads,) if D == 'head' else (heads, headdim)
            inputs['D'] = normal(*shape)
        if gate:
            inputs['z'] = normal(batch, length, heads, headdim)
        if bias:
            inputs['dt_bias'] = normal(heads)
        if carry:
            shape = (batch, heads, headdim, state)
            inputs['initial_states'] = normal(*shape)
        return inputs

    return make


@pytest.fixture(scope='session')
def run_with_gradients() -> Callable[..., dict[str, Tensor]]:
    """Run a function of named tensors; name its outputs and gradients."""

    def run(
        fn: Callable[..., Tensor | tuple[Tensor, ...]],
        inputs: dict[str, Tensor],
    ) -> dict[str, Tensor]:
        leaves = {
            name: tensor.detach().clone().requires_grad_()
            for name, tensor in inputs.items()
        }
        outputs = fn(**leaves)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        generator = torch.Generator().manual_seed(1)
        weights = [
            torch.randn(out.shape, generator=generator, dtype=torch.float64)
            for out in outputs
        ]
        loss = sum(
            (out * weight.to(out.dtype)).sum()
            for out, weight in zip(outputs, weights, strict=True)
        )
        gradients = torch.autograd.grad(
            loss, leaves.values(), allow_unused=True, materialize_grads=True
        )
        result = {f'out{i}': out for i, out in enumerate(outputs)}
        for name, gradient in zip(leaves, gradients, strict=True):
            result[f'grad_{name}'] = gradient
        return result

    return run


@pytest.fixture(scope='session')
def assert_same() -> Callable[..., None]:
    """Compare two results of `run_with_gradients` by the tolerance table."""

    def check(
        actual: dict[str, Tensor],
        expected: dict[str, Tensor],
        dtype: torch.dtype,
    ) -> None:
        assert actual.keys() == expected.keys()
        name = str(dtype).removeprefix('torch.')
        for key, value in actual.items():
            assert value.dtype == expected[key].dtype, key
            assert_close(
                value,
                expected[key],
                f'torch_vs_reference_{name}',
                key,
                gradient=key.startswith('grad_'),
            )

    return check
