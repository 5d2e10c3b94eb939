"""Import ``mmssm.kernels`` from a checkout.

The directory ``kernels/`` beside the package becomes ``mmssm.kernels`` when
the project is installed. In the root of a checkout the import system takes
``mmssm`` from the current directory, which has no ``kernels`` inside, even
where a wheel is installed.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_KERNELS = 'mmssm.kernels'


class KernelsFinder(MetaPathFinder):
    """Finder that answers for ``mmssm.kernels`` and for nothing else.

    Args:
        directory (Path): The directory ``kernels/`` of the checkout.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != _KERNELS:
            return None
        return spec_from_file_location(
            fullname,
            self.directory / '__init__.py',
            submodule_search_locations=[str(self.directory)],
        )


def find_kernels(package: Path) -> None:
    """Make ``mmssm.kernels`` importable where it is not in the package.

    Args:
        package (Path): The directory of the imported package.
    """
    kernels = package.parent / 'kernels'
    # `kernels` in site-packages would be somebody else's package.
    is_checkout = (package.parent / 'pyproject.toml').is_file()
    if (package / 'kernels').is_dir() or not is_checkout:
        return
    if (kernels / '__init__.py').is_file():
        # Last, so that an installed finder is asked first.
        sys.meta_path.append(KernelsFinder(kernels))
