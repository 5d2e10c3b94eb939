"""Config bases of the four libraries."""

from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE

from mmssm.compat import package_table


@pytest.mark.parametrize(
    ('base', 'scope'),
    [
        ('mmpretrain::_base_/default_runtime.py', 'mmpretrain'),
        ('mmseg::_base_/default_runtime.py', 'mmseg'),
        ('mmdet::_base_/default_runtime.py', 'mmdet'),
    ],
)
def test_bases_of_parent_libraries_resolve(
    tmp_path: Path, base: str, scope: str
) -> None:
    path = tmp_path / 'config.py'
    path.write_text(f'_base_ = [{base!r}]\n')
    assert Config.fromfile(path).default_scope == scope


def test_bases_of_mmssm_resolve(tmp_path: Path) -> None:
    import mmssm

    installed = Path(mmssm.__file__).parent / '.mim' / 'configs'
    if not installed.is_dir():
        pytest.skip('mmssm is not installed: there is no mmssm/.mim')
    base = next(installed.rglob('_base_/**/*.py')).relative_to(installed)
    path = tmp_path / 'config.py'
    path.write_text(f'_base_ = ["mmssm::{base}"]\nmarker = 1\n')
    cfg = Config.fromfile(path)
    assert cfg.marker == 1
    assert len(cfg) > 1


@pytest.mark.parametrize(
    ('installed', 'expected'), [(True, 'mmsegmentation'), (False, 'mmseg')]
)
def test_mmseg_entry_depends_on_its_distribution(
    monkeypatch: pytest.MonkeyPatch, installed: bool, expected: str
) -> None:
    monkeypatch.setitem(MODULE2PACKAGE, 'mmseg', 'mmsegmentation')
    monkeypatch.setattr(package_table, 'is_installed', lambda name: installed)
    package_table.register_packages()
    assert MODULE2PACKAGE['mmseg'] == expected
