"""The library of the C kernels: built, found, checked, and left out."""

import _ctypes
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmssm.kernels.cpu import library
from mmssm.kernels.cpu.selective_scan import ForwardArguments
from tests.test_kernels.native_checks import EACH_SET, NEEDS_LIBRARY

ROOT = Path(__file__).parents[2]


@NEEDS_LIBRARY
def test_library_is_loaded_once() -> None:
    loaded = library.native_library()
    assert library.native_library() is loaded
    assert library.is_available()
    assert library.unavailable_reason() is None
    count = len(loaded.instruction_sets)
    assert loaded.instruction_sets == library.INSTRUCTION_SETS[:count]
    assert count >= 1


@NEEDS_LIBRARY
@pytest.mark.skipif(
    not Path('/proc/cpuinfo').is_file(), reason='no list of CPU features'
)
def test_instruction_sets_are_those_of_the_cpu() -> None:
    flags = set(Path('/proc/cpuinfo').read_text().split())
    expected = ['baseline']
    if flags >= {'avx2', 'fma'}:
        expected.append('avx2')
        if flags >= {'avx512f', 'avx512vl', 'avx512dq', 'avx512bw'}:
            expected.append('avx512')
    assert list(library.native_library().instruction_sets) == expected


@EACH_SET
@NEEDS_LIBRARY
def test_every_instruction_set_has_kernels(isa: str) -> None:
    for dtype in library.DTYPES:
        kernel = library.function(
            'selective_scan_fwd', dtype, ForwardArguments, isa
        )
        assert kernel.__name__.endswith(isa)


@NEEDS_LIBRARY
def test_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no 'avx1024' kernels"):
        library.function(
            'selective_scan_fwd', torch.float32, ForwardArguments, 'avx1024'
        )


@NEEDS_LIBRARY
def test_other_arguments_are_refused() -> None:
    class Arguments(ctypes.Structure):
        _fields_ = [('batch', ctypes.c_int64)]

    with pytest.raises(RuntimeError, match='Arguments has 8'):
        library.function('selective_scan_fwd', torch.float32, Arguments)


@NEEDS_LIBRARY
def test_stale_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    abi = library.ABI
    monkeypatch.setattr(library, 'ABI', abi + 1)
    with pytest.raises(RuntimeError) as error:
        library.open_library(library.PATH)
    message = str(error.value)
    assert f'ABI {abi}; expected {abi + 1}' in message
    assert 'pip install -v -e .' in message


def test_missing_library_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='were not built'):
        library.open_library(tmp_path / library.PATH.name)


def test_broken_library_is_explained(tmp_path: Path) -> None:
    (tmp_path / 'broken.so').write_text('no library')
    with pytest.raises(RuntimeError, match='do not load'):
        library.open_library(tmp_path / 'broken.so')


def test_other_library_is_explained() -> None:
    with pytest.raises(RuntimeError, match='not a library of mmssm'):
        library.open_library(Path(_ctypes.__file__))


def _build(
    folder: Path, compiler: str
) -> tuple[subprocess.CompletedProcess, Path]:
    """Build in a copy of the sources, over a library of an earlier build."""
    ignored = shutil.ignore_patterns('__pycache__', '.mim', '*.so')
    for name in ('mmssm', 'kernels'):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
        shutil.copy2(ROOT / name, folder / name)
    target = folder / 'kernels/cpu' / library.PATH.name
    target.write_text('an earlier build')
    result = subprocess.run(
        [sys.executable, 'setup.py', 'build_ext', '--inplace'],
        cwd=folder,
        env={**os.environ, 'CC': compiler},
        capture_output=True,
        text=True,
    )
    return result, target


@pytest.mark.parametrize('compiler', ('no-such-compiler', 'false'))
def test_build_succeeds_without_a_compiler(
    tmp_path: Path, compiler: str
) -> None:
    result, target = _build(tmp_path, compiler)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    assert 'the native CPU kernels were NOT built' in output
    assert "backend='torch'" in output
    # The library of an earlier build would not fit these sources.
    assert not target.exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which('cc') is None, reason='no C compiler')
def test_build_makes_a_library_that_loads(tmp_path: Path) -> None:
    result, target = _build(tmp_path, 'cc')
    assert result.returncode == 0, result.stdout + result.stderr
    assert library.open_library(target).instruction_sets
