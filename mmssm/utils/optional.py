"""Optional packages, imported by the part that needs them."""

import importlib
from types import ModuleType


def require(name: str, extra: str, used_by: str) -> ModuleType:
    """Import an optional package or say how to install it.

    Args:
        name (str): Import name.
        extra (str): Extra of mmssm that brings the package.
        used_by (str): What needs it.

    Returns:
        ModuleType: The package.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition('.')[0]:
            raise  # it is there, but something it needs is not
        raise ImportError(
            f'{used_by} needs `{name}`, which is not installed: '
            f'pip install "mmssm[{extra}]"'
        ) from error
