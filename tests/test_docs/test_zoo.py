"""Config folders: configs, metafile and README say the same."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmssm.apis.loading import without_pretrained
from mmssm.registry import MODELS
from tests.test_docs.markdown import ROOT

METAFILES = sorted((ROOT / 'configs').glob('*/metafile.yml'))
COLUMNS = (
    'model',
    'params (M)',
    'FLOPs (G)',
    'accuracy / Jaccard (%), protocol',
    'config',
    'weights',
    'log',
    'seeds',
)
MODEL_ENTRIES = [
    pytest.param(path.parent, entry, id=entry['Name'])
    for path in METAFILES
    for entry in yaml.safe_load(path.read_text())['Models']
]


def read_table(folder: Path) -> dict[str, dict[str, str]]:
    """Rows of the table of configs, by the file that they link to."""
    rows = {}
    for line in (folder / 'README.md').read_text().splitlines():
        link = re.search(r'\[config\]\(([^)]+)\)', line)
        if link:
            cells = [cell.strip() for cell in line.strip('|').split('|')]
            rows[link[1]] = dict(zip(COLUMNS, cells, strict=True))
    return rows


def test_index_imports_every_metafile():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    assert [ROOT / name for name in index['Import']] == METAFILES


def test_every_config_is_listed():
    folders = {path.parent for path in (ROOT / 'configs').glob('[!_]*/*.py')}
    assert folders == {path.parent for path in METAFILES}
    for folder in folders:
        configs = {path.name for path in folder.glob('*.py')}
        assert configs == read_table(folder).keys()
        models = yaml.safe_load((folder / 'metafile.yml').read_text())
        listed = [Path(model['Config']) for model in models['Models']]
        assert {ROOT / path for path in listed} == {
            folder / name for name in configs
        }
        assert len(listed) == len(configs)
        collections = {c['Name'] for c in models['Collections']}
        assert {m['In Collection'] for m in models['Models']} <= collections
        for collection in models['Collections']:
            assert (ROOT / collection['README']).is_file()


@pytest.mark.parametrize('folder, entry', MODEL_ENTRIES)
def test_numbers_agree(folder, entry):
    config = Config.fromfile(ROOT / entry['Config'])
    # Of a distiller, its student.
    model_config = config.model.get('student', config.model)
    if model_config.backbone.type == 'TimmBackbone':
        pytest.importorskip('timm')
    if config.default_scope != 'mmssm':
        pytest.importorskip(config.default_scope)
    with (
        DefaultScope.overwrite_default_scope(config.default_scope),
        torch.device('meta'),  # no memory, no initialisation to wait for
    ):
        model = MODELS.build(without_pretrained(model_config))
    parameters = sum(p.numel() for p in model.parameters())
    assert entry['Metadata']['Parameters'] == parameters

    path = ROOT / entry['Config']
    assert entry['Name'] == path.stem
    row = read_table(folder)[path.name]
    assert row['params (M)'] == f'{parameters / 1e6:.2f}'
    text = (folder / 'README.md').read_text()
    if parameters > 1e8:
        assert f'{parameters:,}' in text
    flops = entry['Metadata'].get('FLOPs')
    if flops is None:
        assert row['FLOPs (G)'] == 'not measured'
    else:
        assert row['FLOPs (G)'].split()[0] == f'{flops / 1e9:.2f}'


@pytest.mark.parametrize('folder, entry', MODEL_ENTRIES)
def test_nothing_is_claimed_without_weights(folder, entry):
    row = read_table(folder)[Path(entry['Config']).name]
    assert all(row.values())
    assert (row['weights'] == 'none') == (entry['Weights'] is None)
    if entry['Weights'] is None:
        assert 'Results' not in entry
    # Every number says where it is from.
    for column in COLUMNS[2:4]:
        numbers = re.search(r'\d\.\d|see', row[column])
        assert not numbers or re.search(r'\*[rec]\*', row[column])
