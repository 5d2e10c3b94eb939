"""The Python of the documentation runs and prints what it says."""

import contextlib
import io
import subprocess
import sys

import pytest

from mmssm.evaluation.functional import FramePrediction, write_predictions
from mmssm.registry import DATASETS, MODELS
from tests.test_docs.markdown import (
    PAGES,
    ROOT,
    files_of_the_page,
    page_id,
    read_blocks,
)

PAGES_WITH_PYTHON = [
    page
    for page in PAGES
    if any(block.language == 'python' for block in read_blocks(page))
]
# What the installation that the README starts with does not bring.
NOT_INSTALLED = ('cv2', 'timm', 'mmcv', 'mmpretrain', 'mmseg', 'mmdet')
WITHOUT_EXTRAS = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {NOT_INSTALLED}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Refuse())
"""


def test_there_is_python():
    pages = {page_id(page) for page in PAGES_WITH_PYTHON}
    assert {
        'README.md',
        'docs/user_guides/streaming.md',
        'docs/advanced_guides/add_temporal_model.md',
    } <= pages


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """An empty project, with the predictions that a test run leaves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for registry in (MODELS, DATASETS):  # forget what the pages register
        registry.import_from_location()
        known = dict(registry.module_dict)
        monkeypatch.setattr(registry, '_module_dict', known)
    modules = set(sys.modules)
    write_predictions(
        tmp_path / 'predictions/video41.jsonl',
        [
            FramePrediction('video41', 0, 0.0, 1, 'x', [0, 1, 0], gt_phase=1),
            FramePrediction('video41', 1, 1.0, 1, 'x', [0, 1, 0], gt_phase=2),
        ],
    )
    yield tmp_path
    for name in set(sys.modules) - modules:
        if name.partition('.')[0] == 'my_project':
            del sys.modules[name]


@pytest.mark.parametrize('page', PAGES_WITH_PYTHON, ids=page_id)
def test_snippets_run(page, directory):
    files = files_of_the_page(page)
    for name, block in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(block.text)
    blocks = read_blocks(page)
    namespace = {'__name__': '__main__'}
    for number, block in enumerate(blocks):
        if block.language != 'python' or block in files.values():
            continue
        code = compile('\n' * block.line + block.text, str(page), 'exec')
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, namespace)
        following = blocks[number + 1 : number + 2]
        if following and following[0].language == 'text':
            assert output.getvalue() == following[0].text


def test_first_snippet_needs_no_extra(tmp_path):
    block = next(
        b for b in read_blocks(ROOT / 'README.md') if b.language == 'python'
    )
    lines = [line for line in block.text.splitlines() if line]
    assert len(lines) <= 10
    done = subprocess.run(
        [sys.executable, '-c', WITHOUT_EXTRAS + block.text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('True') == 3
