"""Who answers for mmcv's compiled extension, and how."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmssm.compat import prepare_environment
from mmssm.compat.mmcv_ext import MMCVExtFinder


def _run(code: str, *paths: Path) -> subprocess.CompletedProcess:
    """Run code in a fresh interpreter with directories before all others."""
    inserts = ''.join(f'sys.path.insert(0, {str(p)!r})\n' for p in paths)
    return subprocess.run(
        [sys.executable, '-c', f'import sys\n{inserts}{code}'],
        capture_output=True,
        text=True,
    )


def _fake_mmcv(root: Path, extension: str) -> None:
    """Write a package mmcv with an extension of its own."""
    (root / 'mmcv').mkdir()
    (root / 'mmcv/__init__.py').touch()
    (root / 'mmcv/_ext.py').write_text(extension)


def test_prepare_environment_is_idempotent() -> None:
    prepare_environment()
    prepare_environment()
    finders = [f for f in sys.meta_path if isinstance(f, MMCVExtFinder)]
    assert len(finders) == 1


def test_mmcv_ops_and_detectors_import() -> None:
    import mmcv.ops
    import mmdet.models

    assert mmcv.ops.get_compiler_version().startswith('not compiled')
    assert 'mmssm' in mmcv.ops.get_compiling_cuda_version()
    assert mmdet.models.MaskRCNN is not None


def test_missing_operator_is_named() -> None:
    from mmcv.ops import sigmoid_focal_loss

    with pytest.raises(
        NotImplementedError, match='`sigmoid_focal_loss_forward`.*roi_align'
    ):
        sigmoid_focal_loss(torch.zeros(2, 3), torch.zeros(2).long())


def test_compiled_extension_wins(tmp_path: Path) -> None:
    _fake_mmcv(tmp_path, 'nms = "compiled"')
    result = _run(
        'from mmssm.compat import prepare_environment\n'
        'prepare_environment()\n'
        'import mmcv._ext\n'
        'print(mmcv._ext.nms, hasattr(mmcv._ext, "softnms"))',
        tmp_path,
    )
    assert result.stdout.strip() == 'compiled False', result.stderr


def test_broken_compiled_extension_is_not_hidden(tmp_path: Path) -> None:
    _fake_mmcv(tmp_path, 'raise ImportError("undefined symbol")')
    result = _run(
        'from mmssm.compat import prepare_environment\n'
        'prepare_environment()\n'
        'import mmcv._ext',
        tmp_path,
    )
    assert result.returncode == 1
    assert 'undefined symbol' in result.stderr


def test_late_call_warns() -> None:
    result = _run(
        'import mmcv.cnn\n'
        'from mmssm.compat import prepare_environment\n'
        'prepare_environment()'
    )
    assert 'Call prepare_environment() first' in result.stderr


def test_everything_works_without_parent_libraries() -> None:
    result = _run(
        'blocked = {"mmcv", "mmdet", "mmseg", "mmpretrain", "timm"}\n'
        'class Blocker:\n'
        '    def find_spec(self, name, path=None, target=None):\n'
        '        if name.partition(".")[0] in blocked:\n'
        '            raise ModuleNotFoundError(name, name=name)\n'
        'sys.meta_path.insert(0, Blocker())\n'
        'from mmssm.compat import prepare_environment\n'
        'prepare_environment()\n'
        'import mmssm.engine.launch, mmssm.kernels, mmssm.registry\n'
        'try:\n'
        '    import mmcv._ext\n'
        'except ModuleNotFoundError as error:\n'
        '    print(error.name)'
    )
    assert result.stdout.strip() == 'mmcv', result.stderr


def test_missing_opencv_says_what_to_install() -> None:
    result = _run(
        'import importlib.util as util\n'
        'find_spec = util.find_spec\n'
        'util.find_spec = lambda n: None if n == "cv2" else find_spec(n)\n'
        'import mmssm.engine.launch\n'
        'from mmssm.compat import prepare_environment\n'
        'assert "cv2" not in sys.modules\n'
        'prepare_environment()'
    )
    assert "pip install 'mmssm[video]'" in result.stderr


def test_import_of_mmssm_is_light() -> None:
    result = _run(
        'import mmssm\n'
        'heavy = {"cv2", "torchvision", "mmcv", "timm", "matplotlib"}\n'
        'print(sorted(heavy & set(sys.modules)))'
    )
    assert result.stdout.strip() == '[]', result.stderr
