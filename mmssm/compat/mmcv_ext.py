"""Stand-in for mmcv's compiled extension, backed by torchvision.

Upstream reason: the wheel of mmcv on PyPI has no compiled ``mmcv._ext``, so
``import mmcv.ops`` fails and ``mmdet.models`` with it. Building the extension
takes half an hour and a C++20 compiler. The models configured here call three
of its 113 functions, and torchvision has kernels for those three with the
same results.

The stand-in is a finder at the *end* of ``sys.meta_path``: a compiled
extension on disk is always found first, and one that fails to load raises
its own error. Every function without a stand-in raises an error that names
it.
"""

import sys
import types
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

from mmssm.compat import mmcv_ops

_MODULE = 'mmcv._ext'


def _missing_op(name: str) -> Callable:
    """Return a function that raises an error naming the operator."""

    def missing_op(*args, **kwargs):
        raise NotImplementedError(
            f'mmcv operator `{name}` needs the compiled extension of mmcv, '
            f'which is not installed. The stand-in of mmssm has '
            f'{", ".join(sorted(mmcv_ops.OPERATORS))} only. A build of mmcv '
            'with its operators is used as soon as it is installed (see '
            '"build from source" in the documentation of mmcv)'
        )

    missing_op.__name__ = name
    return missing_op


class _StandInModule(types.ModuleType):
    """Module whose unknown attributes are functions that raise."""

    # mmcv.ops asserts at import that each of its operators is an attribute,
    # so unknown ones must exist and fail when they are called.
    def __getattr__(self, name: str) -> Callable:
        if name.startswith('__'):
            raise AttributeError(name)
        return _missing_op(name)


class _StandInLoader(Loader):
    """Loader of the stand-in module."""

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(mmcv_ops.OPERATORS)
        # mmcv.utils.collect_env prints these two.
        version = 'not compiled (torchvision stand-in of mmssm)'
        module.get_compiler_version = lambda: version
        module.get_compiling_cuda_version = lambda: version


class MMCVExtFinder(MetaPathFinder):
    """Finder that answers for ``mmcv._ext`` and for nothing else."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        return ModuleSpec(
            fullname, _StandInLoader(), origin='mmssm.compat.mmcv_ext'
        )


def install_mmcv_ext_stand_in() -> None:
    """Let ``import mmcv.ops`` work without compiled mmcv operators.

    Harmless without mmcv, with a compiled mmcv and when repeated. It has to
    run before ``mmcv.cnn``, ``mmpretrain``, ``mmseg`` or ``mmdet`` is
    imported, since mmcv remembers at import which operators it found.
    """
    if any(isinstance(finder, MMCVExtFinder) for finder in sys.meta_path):
        return
    if 'mmcv.cnn' in sys.modules and 'mmcv.ops' not in sys.modules:
        warnings.warn(
            'mmcv was imported before mmssm.compat.prepare_environment(): '
            'its transformer layers stay without deformable attention. Call '
            'prepare_environment() first.',
            stacklevel=2,
        )
    sys.meta_path.append(MMCVExtFinder())
