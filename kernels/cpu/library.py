"""The shared library of the C kernels: found, checked, and its functions.

The library is optional: setup.py builds it where there is a C compiler. It is
no Python module but a plain library of C functions, called through ctypes.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Also brings the OpenMP runtime of torch, which the library then shares.
import torch

# Raised together with MMSSM_ABI in isa.c.
ABI = 1
# Each one holds those before it; setup.py compiles the kernels for each.
INSTRUCTION_SETS = ('baseline', 'avx2', 'avx512')
# The dot keeps tools that list Python modules from taking it for one.
PATH = Path(__file__).with_name('_native.kernels.so')
DTYPES = {torch.float32: 'f32', torch.float64: 'f64'}

_REMEDY = (
    'install mmssm again where a C compiler is (from a checkout: '
    '`pip install -v -e .`, which also says what the compiler said)'
)


@dataclass(frozen=True)
class NativeLibrary:
    """A library that is loaded and fits these Python sources.

    Attributes:
        handle (ctypes.CDLL): The library.
        instruction_sets (tuple[str, ...]): Those that this CPU has, the
            fastest one last.
        openmp (bool): Whether kernels can use more than one thread.
    """

    handle: ctypes.CDLL
    instruction_sets: tuple[str, ...]
    openmp: bool


def open_library(path: Path) -> NativeLibrary:
    """Load a library and check that it fits these Python sources.

    Args:
        path (Path): File of the library.

    Returns:
        NativeLibrary: The library.

    Raises:
        RuntimeError: If it cannot be used; the message says why.
    """
    if not path.is_file():
        raise RuntimeError(
            f'the native kernels were not built ({path} is missing); {_REMEDY}'
        )
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeError(
            f'the native kernels do not load ({error}); {_REMEDY}'
        ) from error
    if not hasattr(handle, 'mmssm_abi'):
        raise RuntimeError(f'{path} is not a library of mmssm; {_REMEDY}')
    abi = handle.mmssm_abi()
    if abi != ABI:
        raise RuntimeError(
            f'the native kernels are of another version (ABI {abi}; expected '
            f'{ABI}); {_REMEDY}'
        )
    instruction_sets = INSTRUCTION_SETS[: handle.mmssm_isa_count()]
    return NativeLibrary(handle, instruction_sets, bool(handle.mmssm_openmp()))


@cache
def _loaded() -> tuple[NativeLibrary | None, str | None]:
    try:
        return open_library(PATH), None
    except RuntimeError as error:
        return None, str(error)


def is_available() -> bool:
    """Whether the native kernels can be used; loads them when first asked."""
    return _loaded()[0] is not None


def unavailable_reason() -> str | None:
    """Return why the native kernels cannot be used, None if they can."""
    return _loaded()[1]


def native_library() -> NativeLibrary:
    """Return the library of the native kernels.

    Returns:
        NativeLibrary: The library, loaded once per process.

    Raises:
        RuntimeError: If it cannot be used; the message says why.
    """
    library, reason = _loaded()
    if library is None:
        raise RuntimeError(reason)
    return library


@cache
def function(
    name: str,
    dtype: torch.dtype,
    arguments: type[ctypes.Structure],
    isa: str | None = None,
):
    """Return a kernel as a Python function of one structure.

    Args:
        name (str): Name of the kernel, for example ``'pole_scan_fwd'``.
        dtype (torch.dtype): float32 or float64.
        arguments (type[ctypes.Structure]): Mirror of the C structure that
            the kernel takes a pointer to.
        isa (str, optional): One of `NativeLibrary.instruction_sets`. Default:
            the fastest one.

    Returns:
        Callable: Takes an ``arguments``, returns None.

    Raises:
        RuntimeError: If the library or the instruction set is not there, or
            the library's structure has another size. The function raises
            MemoryError when the kernel found no memory.
    """
    library = native_library()
    isa = isa or library.instruction_sets[-1]
    if isa not in library.instruction_sets:
        raise RuntimeError(
            f'no {isa!r} kernels on this CPU or in this build; there are '
            f'{library.instruction_sets}'
        )
    symbol = f'mmssm_{name}_{DTYPES[dtype]}_{isa}'
    if not hasattr(library.handle, f'{symbol}_size'):
        raise RuntimeError(f'{PATH} has no {symbol}: it is older; {_REMEDY}')
    size = getattr(library.handle, f'{symbol}_size')()
    if size != ctypes.sizeof(arguments):
        raise RuntimeError(
            f'{symbol} takes {size} bytes; {arguments.__name__} has '
            f'{ctypes.sizeof(arguments)}; {_REMEDY}'
        )
    kernel = library.handle[symbol]
    kernel.argtypes = [ctypes.POINTER(arguments)]
    kernel.restype = ctypes.c_int32
    kernel.errcheck = _check_memory
    return kernel


def _check_memory(status: int, kernel: object, arguments: tuple) -> None:
    if status:
        raise MemoryError('a native kernel of mmssm found no memory')
