"""Which operators PyTorch sees while something runs."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.test_ops.parity.case import Case
from tests.test_ops.parity.run import leaves_of, results


class Calls(TorchDispatchMode):
    """Remember the calls of a namespace, with arguments and results."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self.namespace = namespace
        self.calls: list[tuple[Any, tuple, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == self.namespace:
            self.calls.append((func, args, result))
        return result


def calls_of(
    case: Case, dtype: torch.dtype, backend: str
) -> list[tuple[Any, tuple]]:
    """Our own operators that a case calls, forward and backward."""
    leaves = leaves_of(case.tensors(dtype))
    with Calls('mmssm') as mode:
        results(case.call(leaves, backend), leaves)
    return [(func, args) for func, args, _ in mode.calls]
