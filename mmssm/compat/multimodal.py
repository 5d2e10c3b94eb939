"""mmpretrain without its multi-modal models where they do not import.

Upstream reason: mmpretrain imports its multi-modal models as soon as any
transformers from 4.28 on is installed, but they use functions that
transformers 5 has no more (``find_pruneable_heads_and_indices``), and then
``import mmpretrain.models`` fails with ``TypeError: NoneType takes no
arguments``. Without transformers mmpretrain puts placeholders in their place;
this makes it do the same with transformers 5.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

_MODULE = 'mmpretrain.utils.dependency'


def leave_out_multimodal_models() -> None:
    """Let mmpretrain import beside transformers 5. May be repeated."""
    try:
        major = int(version('transformers').partition('.')[0])
    except PackageNotFoundError:
        return
    package = find_spec('mmpretrain')
    if major < 5 or package is None or _MODULE in sys.modules:
        return
    # Loaded by its file: an import would import all of mmpretrain first.
    spec = _spec_in(package)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.WITH_MULTIMODAL = False
    sys.modules[_MODULE] = module


def _spec_in(package: ModuleSpec) -> ModuleSpec:
    folder = Path(package.submodule_search_locations[0])
    return spec_from_file_location(_MODULE, folder / 'utils' / 'dependency.py')
