"""Which kernels this machine can run.

The answers do not change while a process lives. torch.compile takes them as
constants; it could not trace the questions.
"""

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable


def _constant_in_graphs(function: Callable) -> Callable:
    """Do what `torch.compiler.assume_constant_result` does.

    That function imports the whole compiler, and with it Triton, which would
    make every import of the operators slow.
    """
    function._dynamo_marked_constant = True
    return function


@_constant_in_graphs
def native_obstacle() -> str | None:
    """Why the native CPU kernels cannot be used; None if they can."""
    # Imported by name: the library is looked for when it is first needed.
    library = importlib.import_module('mmssm.kernels.cpu.library')
    return library.unavailable_reason()


@_constant_in_graphs
def native_is_usable() -> bool:
    """Whether the native CPU kernels can be used; says once if not."""
    reason = native_obstacle()
    if reason:
        _warn_once(
            'the native CPU kernels cannot be used, so the slower torch '
            f'implementation serves: {reason}'
        )
    return reason is None


@_constant_in_graphs
def triton_obstacle(device: str) -> str | None:
    """Why Triton kernels cannot run on a device; None if they can.

    Args:
        device (str): Type of the device, such as ``'cuda'``.
    """
    if not _triton_is_installed():
        return 'triton is not installed'
    if device == 'cuda':
        return None
    if device == 'cpu':
        triton = importlib.import_module('triton')
        if triton.knobs.runtime.interpret:
            return None
    return (
        f'it needs tensors on a GPU and these are on {device} (Triton can '
        'interpret kernels on the CPU, slowly, for tests: set '
        'TRITON_INTERPRET=1 before Python starts)'
    )


@_constant_in_graphs
def triton_is_usable() -> bool:
    """Whether a CUDA device can run Triton kernels; says once if not."""
    reason = triton_obstacle('cuda')
    if reason:
        _warn_once(
            f'{reason}, so the slower torch implementation serves the GPU'
        )
    return reason is None


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec('triton') is not None


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=3)
