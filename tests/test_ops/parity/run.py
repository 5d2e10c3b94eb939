"""Run a case on a backend and compare it with the definition."""

import functools

import torch
from torch import Tensor

from mmssm.testing import assert_close
from tests.test_ops.parity.case import HALVES, Case
from tests.test_ops.parity.cases import find

# The default: most tests differentiate with respect to everything.
EVERY = None


def leaves_of(
    tensors: dict[str, Tensor], wanted: tuple[str, ...] | None = EVERY
) -> dict[str, Tensor]:
    """Let floating tensors require gradients; layouts stay as they are."""
    return {
        name: tensor.detach().requires_grad_(
            tensor.is_floating_point() and (wanted is None or name in wanted)
        )
        for name, tensor in tensors.items()
    }


def upstream(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients of the outputs, exact in every dtype."""
    generator = torch.Generator().manual_seed(1)
    return tuple(
        (torch.randint(-8, 9, out.shape, generator=generator) / 4).to(out)
        for out in outputs
    )


def results(
    outputs: tuple[Tensor, ...], leaves: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Name outputs and gradients."""
    leaves = {
        name: leaf for name, leaf in leaves.items() if leaf.requires_grad
    }
    # With few leaves, some outputs may depend on none.
    pairs = [
        (out, grad)
        for out, grad in zip(outputs, upstream(outputs), strict=True)
        if out.requires_grad
    ]
    gradients = torch.autograd.grad(
        [out for out, _ in pairs],
        list(leaves.values()),
        [grad for _, grad in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    named = {f'out{i}': out.detach() for i, out in enumerate(outputs)}
    named |= {
        f'grad_{name}': gradient
        for name, gradient in zip(leaves, gradients, strict=True)
    }
    return named


def run(
    case: Case,
    dtype: torch.dtype,
    backend: str | None,
    device: str = 'cpu',
    wanted: tuple[str, ...] | None = EVERY,
) -> dict[str, Tensor]:
    """Outputs and gradients of a case on a backend."""
    leaves = leaves_of(case.tensors(dtype, device), wanted)
    return results(case.call(leaves, backend), leaves)


@functools.lru_cache(maxsize=16)
def expected(
    op: str, name: str, dtype: torch.dtype, device: str = 'cpu'
) -> dict[str, Tensor]:
    """What the definition gives in float64 for the same values."""
    case = find(op, name)
    tensors = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in case.tensors(dtype, device).items()
    }
    leaves = leaves_of(tensors)
    return results(case.call(leaves, 'reference'), leaves)


def compare(
    actual: dict[str, Tensor],
    reference: dict[str, Tensor],
    backend: str,
    dtype: torch.dtype,
) -> None:
    """Compare all of it by the table of tolerances."""
    assert actual.keys() == reference.keys()
    for key, value in actual.items():
        # A half-precision argument among float32 ones has a rounded gradient.
        rounded = value.dtype if value.dtype in HALVES else dtype
        name = str(rounded).removeprefix('torch.')
        assert_close(
            value,
            reference[key],
            f'{backend}_vs_reference_{name}',
            key,
            gradient=key.startswith('grad_'),
        )
