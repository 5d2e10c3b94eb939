"""From the source archive to an installed package, in a new environment."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from mmssm._checkout import find_kernels

ROOT = Path(__file__).parents[2]
SOURCES = (
    'mmssm',
    'kernels',
    'configs',
    'tools',
    'docs',
    'pyproject.toml',
    'setup.py',
    'MANIFEST.in',
    'model-index.yml',
    'README.md',
    'LICENSE',
    'CHANGELOG.md',
    'CONTRIBUTING.md',
    'Makefile',
)

# A compiler that cannot: what mmssm installs without one.
NO_COMPILER = {'CC': 'false'}

NATIVE_KERNELS = """
from mmssm.kernels.cpu.library import unavailable_reason
print(unavailable_reason())
"""

IMPORT_ALL = """
import importlib, pkgutil
from mmssm.compat import prepare_environment
prepare_environment()
import mmssm
modules = pkgutil.walk_packages(mmssm.__path__, 'mmssm.')
names = [module.name for module in modules]
for name in names:
    importlib.import_module(name)
print(mmssm.__file__)
print(*names)
"""


def _run(*command: object, cwd: Path, **variables: str) -> str:
    """Run a command and return its output; fail if it fails."""
    # Without the variable of a test run that makes the checkout importable.
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    env.update(variables)
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _relative_files(folder: Path, suffix: str = '') -> set[str]:
    """Return the files below a directory, without compiled Python."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob(f'*{suffix}')
        if path.is_file() and '__pycache__' not in path.parts
    }


def _new_environment(folder: Path) -> Path:
    """Make an environment that sees the packages of the running one.

    A path in a ``.pth`` file comes after the site-packages it lies in, and
    the ``.pth`` files below it are not read: an editable mmssm of the running
    environment stays out of sight.
    """
    _run(sys.executable, '-m', 'venv', '--without-pip', folder, cwd=ROOT)
    python = folder / 'bin' / 'python'
    site = Path(
        _run(
            python,
            '-c',
            'import sysconfig; print(sysconfig.get_paths()["purelib"])',
            cwd=folder,
        ).strip()
    )
    (site / 'running.pth').write_text(sysconfig.get_paths()['purelib'])
    return python


def _pip(python: Path, *args: object, cwd: Path, **variables: str) -> None:
    """Run the running environment's pip for another interpreter, offline."""
    _run(
        sys.executable,
        '-m',
        'pip',
        '--python',
        python,
        'install',
        '--quiet',
        '--no-deps',
        '--no-index',
        '--no-build-isolation',
        *args,
        cwd=cwd,
        **variables,
    )


@pytest.fixture(scope='module')
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is under version control, so that nothing is built in it."""
    folder = tmp_path_factory.mktemp('source') / 'mmssm-source'
    folder.mkdir()
    ignored = shutil.ignore_patterns(
        '__pycache__', '.mim', '*.egg-info', '*.kernels.so'
    )
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope='module')
def wheel(source: Path) -> Path:
    """Build the source archive, and the wheel from that archive."""
    before = _relative_files(source)
    _run(
        sys.executable,
        '-m',
        'build',
        '--no-isolation',
        '--outdir',
        source.parent / 'dist',
        source,
        cwd=source.parent,
    )
    added = _relative_files(source) - before
    assert {Path(path).parts[0] for path in added} <= {'mmssm.egg-info'}
    return next((source.parent / 'dist').glob('*.whl'))


@pytest.fixture(scope='module')
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a new environment; return its interpreter."""
    folder = tmp_path_factory.mktemp('installed')
    python = _new_environment(folder / 'venv')
    _pip(python, wheel, cwd=folder)
    return python


def test_wheel_has_one_top_level_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        top_level = next(n for n in names if n.endswith('/top_level.txt'))
        assert archive.read(top_level).decode().strip() == 'mmssm'
    roots = {name.partition('/')[0] for name in names}
    assert {root.partition('-')[0] for root in roots} == {'mmssm'}


def test_every_module_imports(installed: Path, tmp_path: Path) -> None:
    where, names = _run(installed, '-c', IMPORT_ALL, cwd=tmp_path).split('\n')[
        -3:-1
    ]
    package = Path(where).parent
    assert package.is_relative_to(installed.parents[1])
    files = _relative_files(ROOT / 'mmssm', '.py') | {
        f'kernels/{path}' for path in _relative_files(ROOT / 'kernels', '.py')
    }
    expected = {
        path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')
        for path in files - {'__init__.py'}
        if not path.startswith('.mim')
    }
    assert {f'mmssm.{name}' for name in expected} == set(names.split())


@pytest.mark.skipif(
    not any(map(shutil.which, ('cc', 'gcc', 'clang'))),
    reason='needs a C compiler; none was found',
)
def test_native_kernels_are_in_the_wheel(installed: Path) -> None:
    reason = _run(installed, '-c', NATIVE_KERNELS, cwd=installed.parent)
    assert reason.strip() == 'None'


def test_configs_and_tools_are_installed(
    installed: Path, tmp_path: Path
) -> None:
    where = _run(installed, '-c', 'import mmssm; print(mmssm.__file__)',
                 cwd=tmp_path).strip()  # fmt: skip
    mim = Path(where).parent / '.mim'
    assert not (mim / 'configs').is_symlink()
    assert (mim / 'model-index.yml').is_file()
    for name in ('configs', 'tools'):
        assert _relative_files(mim / name) == _relative_files(ROOT / name)
    # As a user of the package, from any directory.
    names = sorted(
        str(path.relative_to(ROOT / 'configs'))
        for path in (ROOT / 'configs').rglob('*.py')
        if '_base_' not in path.parts
    )
    assert len(names) >= 5
    code = (
        'from mmssm.engine.launch import load_config\n'
        f'for name in {names}:\n'
        "    print(load_config(f'mmssm::{name}').model.type)\n"
    )
    output = _run(installed, '-c', code, cwd=tmp_path)
    kinds = dict(zip(names, output.split(), strict=True))
    assert set(kinds.values()) == {
        'PhaseRecognizer',
        'FeatureDistiller',
        'ImageClassifier',
        'mmssm.FeatureDistiller',
    }
    assert kinds['vim/vim-tiny_digits.py'] == 'ImageClassifier'
    output = _run(
        installed,
        mim / 'tools/misc/print_config.py',
        f'mmssm::{names[0]}',
        cwd=tmp_path,
    )
    assert "type='PhaseRecognizer'" in output


def test_editable_install_links(source: Path, tmp_path: Path) -> None:
    python = _new_environment(tmp_path / 'venv')
    _pip(python, '--editable', source, cwd=tmp_path, **NO_COMPILER)
    reason = _run(python, '-c', NATIVE_KERNELS, cwd=tmp_path)
    assert 'were not built' in reason
    where, kernels = _run(
        python,
        '-c',
        'import mmssm, mmssm.kernels as k; print(mmssm.__file__, k.__file__)',
        cwd=tmp_path,
    ).split()
    assert Path(where).parent == source / 'mmssm'
    assert Path(kernels).parent == source / 'kernels'
    mim = source / 'mmssm/.mim'
    for name in ('configs', 'tools', 'model-index.yml'):
        assert (mim / name).is_symlink()
        assert (mim / name).resolve() == source / name
    # A wheel built now holds files, and the links are still links.
    _run(
        sys.executable,
        '-m',
        'build',
        '--wheel',
        '--no-isolation',
        '--outdir',
        tmp_path,
        source,
        cwd=tmp_path,
        **NO_COMPILER,
    )
    with zipfile.ZipFile(next(tmp_path.glob('*.whl'))) as archive:
        assert 'mmssm/.mim/tools/train.py' in archive.namelist()
    assert (mim / 'tools').is_symlink()


def test_root_of_a_checkout_finds_kernels(installed: Path) -> None:
    # The current directory shadows the installed package there.
    output = _run(
        installed,
        '-c',
        'import mmssm.kernels as k; print(k.__file__)',
        cwd=ROOT,
    )
    assert Path(output.strip()) == ROOT / 'kernels/__init__.py'


@pytest.mark.parametrize('is_checkout', [True, False])
def test_kernels_of_other_packages_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checkout: bool
) -> None:
    # In site-packages `kernels` is a library of Hugging Face.
    (tmp_path / 'mmssm').mkdir()
    (tmp_path / 'kernels').mkdir()
    (tmp_path / 'kernels/__init__.py').touch()
    if is_checkout:
        (tmp_path / 'pyproject.toml').touch()
    monkeypatch.setattr(sys, 'meta_path', [])
    find_kernels(tmp_path / 'mmssm')
    assert len(sys.meta_path) == is_checkout
