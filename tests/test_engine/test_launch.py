"""What the runner tools share."""

import argparse
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmssm.engine import launch


def test_find_config_takes_paths_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'mine.py').write_text('a = 1\n')
    monkeypatch.chdir(tmp_path)
    assert launch.find_config('mine.py') == 'mine.py'
    found = launch.find_config('mmpretrain::resnet/resnet18_8xb32_in1k.py')
    assert Path(found).is_file()


def test_find_config_knows_the_packaged_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = next(launch._config_root().rglob('*.py'))
    relative = known.relative_to(launch._config_root())
    for name in (relative, 'configs' / relative, f'mmssm::{relative}'):
        assert Path(launch.find_config(str(name))).samefile(known)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('mmpretrain::resnet/resnet18_8xb23_in1k.py', 'resnet18_8xb32_in1k'),
        ('nolib::resnet.py', 'package `nolib`'),
        ('folder/minee.py', 'did you mean\n  .*mine.py'),
        ('folder/completely-different.py', 'was not found$'),
    ],
)
def test_find_config_suggests_near_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'folder/mine.py').touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, '_config_root', lambda: tmp_path / 'none')
    with pytest.raises(FileNotFoundError, match=message):
        launch.find_config(name)


def test_load_config_applies_options(tmp_path: Path) -> None:
    path = tmp_path / 'c.py'
    path.write_text('optimizer = dict(lr=0.1, momentum=0.9)\n')
    parser = argparse.ArgumentParser()
    launch.add_config_arguments(parser)
    args = parser.parse_args(
        [str(path), '--cfg-options', 'optimizer.lr=0.5', 'steps=1,2']
    )
    cfg = launch.load_config(args.config, args.cfg_options)
    assert cfg.optimizer == dict(lr=0.5, momentum=0.9)
    assert cfg.steps == [1, 2]


@pytest.mark.parametrize(
    ('argument', 'in_config', 'expected'),
    [
        ('cli', 'cfg', 'cli'),
        (None, 'cfg', 'cfg'),
        (None, None, 'work_dirs/name'),
    ],
)
def test_set_work_dir(
    argument: str | None, in_config: str | None, expected: str
) -> None:
    cfg = Config(dict(work_dir=in_config))
    launch.set_work_dir(cfg, argument, 'configs/x/name.py')
    assert Path(cfg.work_dir) == Path(expected)


def test_scope_defaults_are_those_of_mmpretrain() -> None:
    loader = dict(num_workers=0)
    cfg = Config(
        dict(
            default_scope='mmpretrain',
            train_dataloader=dict(num_workers=2, persistent_workers=False),
            test_dataloader=loader,
        )
    )
    launch.set_scope_defaults(cfg)
    assert cfg.train_dataloader.persistent_workers is False
    assert cfg.test_dataloader.persistent_workers is False
    assert cfg.test_dataloader.collate_fn.type == 'default_collate'
    other = Config(dict(default_scope='mmssm', test_dataloader=loader))
    launch.set_scope_defaults(other)
    assert other.test_dataloader == loader


def test_check_exists_names_other_checkpoints(tmp_path: Path) -> None:
    (tmp_path / 'epoch_1.pth').touch()
    launch.check_exists('https://example.org/a.pth')
    launch.check_exists(str(tmp_path / 'epoch_1.pth'))
    with pytest.raises(FileNotFoundError, match='there are: .*epoch_1.pth'):
        launch.check_exists(str(tmp_path / 'epoch_2.pth'))
    with pytest.raises(FileNotFoundError, match='no .pth files in'):
        launch.check_exists(str(tmp_path / 'none' / 'epoch_2.pth'))


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def _save(path: Path, content: object) -> str:
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize('wrapped', [True, False])
def test_load_weights_fills_the_model(tmp_path: Path, wrapped: bool) -> None:
    source, model = _model(), _model()
    state = source.state_dict()
    # Old checkpoints lack the counter; others have more weights.
    del state['1.num_batches_tracked']
    state['auxiliary.weight'] = torch.zeros(1)
    if wrapped:
        state = {f'module.{key}': value for key, value in state.items()}
    launch.load_weights(
        model, _save(tmp_path / 'a.pth', {'state_dict': state})
    )
    assert torch.equal(model[0].weight, source[0].weight)


def test_load_weights_refuses_other_models(tmp_path: Path) -> None:
    missing = _save(tmp_path / 'a.pth', {'2.weight': torch.zeros(1)})
    with pytest.raises(
        ValueError, match=r'lacks 6 of 7 weights \(0.weight.*lacks: 2.weight'
    ):
        launch.load_weights(_model(), missing)
    shape = _save(tmp_path / 'b.pth', {'0.weight': torch.zeros(5, 3)})
    with pytest.raises(ValueError, match='size mismatch for 0.weight'):
        launch.load_weights(_model(), shape)


def test_load_weights_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / 'a.pth').write_text('not a checkpoint')
    with pytest.raises(ValueError, match='is not a checkpoint of PyTorch'):
        launch.load_weights(_model(), str(tmp_path / 'a.pth'))
    authors = _save(tmp_path / 'b.pth', {'model': {'w': torch.zeros(1)}})
    with pytest.raises(ValueError, match='keys: model.*model_converters'):
        launch.load_weights(_model(), authors)
    other = _save(tmp_path / 'c.pth', [1, 2])
    with pytest.raises(ValueError, match='holds no weights'):
        launch.load_weights(_model(), other)
