"""mmpretrain beside a transformers that its multi-modal models predate."""

import sys
from importlib import metadata

import pytest

from mmssm.compat import multimodal
from tests.test_tools.commands import run


def test_mmpretrain_imports_beside_any_transformers(tmp_path):
    pytest.importorskip('mmpretrain')
    code = (
        'from mmssm.compat import prepare_environment\n'
        'prepare_environment()\n'
        'prepare_environment()\n'
        'from mmpretrain.registry import MODELS\n'
        'import mmpretrain.models\n'
        'assert MODELS.get("ImageClassifier") and MODELS.get("Flamingo")\n'
    )
    run(sys.executable, '-c', code, cwd=tmp_path)


@pytest.mark.parametrize(
    'installed, left_out', [(None, False), ('4.57.0', False), ('5.1', True)]
)
def test_only_transformers_5_is_left_out(monkeypatch, installed, left_out):
    pytest.importorskip('mmpretrain')

    def version(name):
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(multimodal, 'version', version)
    monkeypatch.delitem(sys.modules, multimodal._MODULE, raising=False)
    multimodal.leave_out_multimodal_models()
    module = sys.modules.pop(multimodal._MODULE, None)
    assert (module is not None) == left_out
    assert module is None or module.WITH_MULTIMODAL is False
