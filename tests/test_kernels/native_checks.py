"""What the tests of the C kernels share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from mmssm.kernels.cpu.library import (
    is_available,
    native_library,
    unavailable_reason,
)
from mmssm.testing import assert_close

# Every kernel on every instruction set of this machine.
INSTRUCTION_SETS = (
    native_library().instruction_sets if is_available() else ('none',)
)
NEEDS_LIBRARY = pytest.mark.skipif(
    not is_available(), reason=unavailable_reason() or ''
)
EACH_SET = pytest.mark.parametrize('isa', INSTRUCTION_SETS)
EACH_DTYPE = pytest.mark.parametrize(
    'dtype', (torch.float64, torch.float32), ids=('float64', 'float32')
)
LAYOUTS = ('contiguous', 'transposed', 'strided', 'expanded')


def randn(*shape: int) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, dtype=torch.float64)


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """Give a tensor of 3 axes another memory layout.

    'expanded' repeats its first batch element, which changes its values.
    """
    if layout == 'transposed':
        return tensor.mT.contiguous().mT
    if layout == 'strided':
        return torch.stack((tensor, tensor), dim=-1)[..., 0]
    if layout == 'expanded':
        return tensor[:1].expand(tensor.shape)
    return tensor.contiguous()


def in_dtype(
    tensors: list[Tensor | None], dtype: torch.dtype
) -> list[Tensor | None]:
    """Cast tensors in their layouts, expanded ones as such."""
    return [None if t is None else _cast(t, dtype) for t in tensors]


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.ndim == 3 and tensor.stride(0) == 0:
        return tensor[:1].to(dtype).expand(tensor.shape)
    cast = tensor.to(dtype)
    if cast.stride() == tensor.stride():
        return cast
    # Only the strided layout is not dense.
    return laid_out(cast, 'strided')


def expected(
    function: Callable,
    tensors: list[Tensor | None],
    grads: tuple[Tensor, ...] | None = None,
) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
    """Outputs of a function in float64, and its gradients by autograd."""
    leaves = [
        None if t is None else t.to(torch.float64).clone().requires_grad_()
        for t in tensors
    ]
    outputs = function(*leaves)
    if grads is None:
        return tuple(t.detach() for t in outputs), []
    present = [leaf for leaf in leaves if leaf is not None]
    gradients = iter(
        torch.autograd.grad(
            outputs, present, grads, allow_unused=True, materialize_grads=True
        )
    )
    return tuple(t.detach() for t in outputs), [
        None if leaf is None else next(gradients) for leaf in leaves
    ]


def check(
    actual: tuple[Tensor | None, ...],
    wanted: tuple[Tensor | None, ...] | list[Tensor | None],
    dtype: torch.dtype,
    gradient: bool = False,
) -> None:
    """Compare results one by one; absent ones must be absent."""
    comparison = f'native_vs_reference_{str(dtype).removeprefix("torch.")}'
    for index, (a, w) in enumerate(zip(actual, wanted, strict=True)):
        assert (a is None) == (w is None), f'result {index}'
        if a is not None:
            assert_close(a, w, comparison, f'result {index}', gradient)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch, and so the kernels, use this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Let new memory hold NaN: what a kernel leaves out shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
