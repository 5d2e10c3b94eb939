"""Choice of the implementation that serves an operator call."""

import importlib
from types import ModuleType

import torch
from torch import Tensor

from mmssm.ops.availability import (
    native_is_usable,
    native_obstacle,
    triton_is_usable,
    triton_obstacle,
)

BACKENDS = ('reference', 'torch', 'native', 'triton')

_LOCATIONS = {
    'torch': 'mmssm.ops.{op}.vectorized',
    'native': 'mmssm.kernels.cpu.{op}',
    'triton': 'mmssm.kernels.triton.{op}',
}


def choose_backend(
    op: str, backend: str | None, tensor: Tensor, available: tuple[str, ...]
) -> str:
    """Decide which implementation of an operator runs.

    This is the only place that decides, and only its arguments and the
    machine count: no environment variable and no global switch of ours.

    Args:
        op (str): Name of the operator, for messages.
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'`` or
            ``'triton'``. None picks the fastest one for the device: `native`
            on a CPU and `triton` on a CUDA device where the operator has it
            and the machine can run it, else `torch`. A path that is slower
            than it could be is named once in a warning.
        tensor (Tensor): First tensor argument of the operator, for its device
            and dtype.
        available (tuple[str, ...]): Backends that ``op`` implements.

    Returns:
        str: One of ``available``.

    Raises:
        ValueError: If ``backend`` is not the name of a backend.
        RuntimeError: If ``backend`` was asked for but cannot serve the call.
    """
    if backend is None:
        return _fastest(tensor, available)
    if backend not in BACKENDS:
        raise ValueError(
            f'`backend` is {backend!r}; expected None or one of {BACKENDS}'
        )
    usable = ' or '.join(repr(name) for name in available)
    if backend not in available:
        raise RuntimeError(
            f'{op} has no {backend} kernel; use backend=None, which picks by '
            f'device, or {usable}'
        )
    reason = _obstacle(backend, tensor.device.type, tensor.dtype)
    if reason:
        raise RuntimeError(
            f'{op} cannot run on backend={backend!r}: {reason}; use '
            'backend=None, which picks by device, or another of '
            f'{usable}'
        )
    return backend


def load_backend(op: str, backend: str) -> ModuleType:
    """Import the module that implements an operator on a backend.

    Args:
        op (str): Name of the operator.
        backend (str): ``'torch'``, ``'native'`` or ``'triton'``.

    Returns:
        ModuleType: Module with the functions ``<op>_fwd`` and ``<op>_bwd``.
    """
    return importlib.import_module(_LOCATIONS[backend].format(op=op))


def _fastest(tensor: Tensor, available: tuple[str, ...]) -> str:
    device = tensor.device.type
    if device == 'cpu' and 'native' in available and native_is_usable():
        return 'native'
    if (
        device == 'cuda'
        and 'triton' in available
        and tensor.dtype != torch.float64
        and triton_is_usable()
    ):
        return 'triton'
    return 'torch'


def _obstacle(backend: str, device: str, dtype: torch.dtype) -> str | None:
    """Why a backend cannot serve tensors like these; None if it can."""
    if backend == 'native':
        if device != 'cpu':
            return f'it needs tensors on the CPU and these are on {device}'
        return native_obstacle()
    if backend == 'triton':
        if dtype == torch.float64:
            return 'Triton kernels compute in float32 and this is float64'
        return triton_obstacle(device)
    return None
