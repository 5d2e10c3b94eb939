"""What the runner tools share."""

import argparse
import logging
import warnings
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from torch import nn

from mmssm.engine import launch
from mmssm.models.recognizers import PhaseRecognizer


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
    path.write_text('optimizer = dict(lr=0.1, momentum=0.9)\nsteps = []\n')
    parser = argparse.ArgumentParser()
    launch.add_config_arguments(parser)
    args = parser.parse_args(
        [str(path), '--cfg-options', 'optimizer.lr=0.5', 'steps=1,2']
    )
    cfg = launch.load_config(args.config, args.cfg_options)
    assert cfg.optimizer == dict(lr=0.5, momentum=0.9)
    assert cfg.steps == [1, 2]


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ('foo', "'foo' is not of the form KEY=VALUE"),
        ('=1', "'=1' is not of the form KEY=VALUE"),
        ('a=[1,(2]', 'Imbalanced brackets'),
    ],
)
def test_options_that_are_none(
    capsys: pytest.CaptureFixture, option: str, message: str
) -> None:
    parser = argparse.ArgumentParser()
    launch.add_config_arguments(parser)
    with pytest.raises(SystemExit) as exit_info:
        parser.parse_args(['c.py', '--cfg-options', 'b=1', option])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err.partition(': error: ')[2]
    assert '--cfg-options' in error and message in error


def test_misspelt_settings_are_told(tmp_path: Path) -> None:
    path = tmp_path / 'c.py'
    path.write_text('train_dataloader = dict(batch_size=2)\n')
    with pytest.warns(UserWarning, match='did you mean `train_dataloader`'):
        launch.load_config(str(path), {'train_dataloder.batch_size': 1})
    with pytest.warns(UserWarning, match='`xyz`, which the .* not have$'):
        launch.load_config(str(path), {'xyz': 1})
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        # The config does not have the second, but the Runner knows it.
        options = {'train_dataloader.batch_size': 1, 'load_from': 'a.pth'}
        cfg = launch.load_config(str(path), options)
    assert cfg.train_dataloader.batch_size == 1


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ({'a.b.c': 1}, 'do not fit .*cannot inherit'),
        ({'a.d.7.e': 1}, 'Index 7 exceeds'),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, option: dict, message: str
) -> None:
    path = tmp_path / 'c.py'
    path.write_text('a = dict(b=1, d=[dict(e=2)])\n')
    with pytest.raises(ValueError, match=message):
        launch.load_config(str(path), option)


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('c.txt', 'hello'),
        ('c.py', 'a = ('),
        ('c.yaml', 'a: ['),
        ('c.json', '{'),
        ('c.py', "_base_ = ['./none.py']"),
    ],
)
def test_files_that_are_no_configs(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=rf'{name}` cannot be read \('):
        launch.load_config(str(path))


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


def test_load_weights_tells_what_it_leaves_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = {**_model().state_dict(), 'extra.weight': torch.zeros(1)}
    logger = MMLogger.get_current_instance()
    logger.addHandler(caplog.handler)
    launch.load_weights(_model(), _save(tmp_path / 'a.pth', state))
    logger.removeHandler(caplog.handler)
    (record,) = [r for r in caplog.records if 'extra' in r.getMessage()]
    assert record.levelno == logging.WARNING
    assert '1 weights of' in record.getMessage()


def test_recognizers_take_weights_that_fit_entirely(tmp_path: Path) -> None:
    class Recognizer(PhaseRecognizer):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.head = nn.Linear(3, 2)

    source, model = Recognizer(), Recognizer()
    state = source.state_dict()
    launch.load_weights(model, _save(tmp_path / 'a.pth', state))
    assert torch.equal(model.head.weight, source.head.weight)
    state['temporal.angle'] = torch.zeros(1)
    del state['head.bias']
    other = _save(tmp_path / 'b.pth', {'state_dict': state})
    with pytest.raises(ValueError, match='b.pth` does not fit') as info:
        launch.load_weights(model, other)
    message = str(info.value)
    assert '1 keys not in the model: temporal.angle' in message
    assert '1 keys missing in the checkpoint: head.bias' in message
    assert 'Use the config that the checkpoint was trained with' in message


def test_resuming_needs_the_state_of_a_training(tmp_path: Path) -> None:
    state = dict(state_dict={'a': torch.zeros(1)}, meta={}, message_hub={})
    launch.check_resumable(_save(tmp_path / 'a.pth', state))
    del state['message_hub']
    weights = _save(tmp_path / 'b.pth', state)
    with pytest.raises(ValueError, match=r'lacks message_hub.*load_from=FI'):
        launch.check_resumable(weights)
    (tmp_path / 'c.pth').write_text('hello\n')
    with pytest.raises(ValueError, match='c.pth` is not a checkpoint'):
        launch.check_resumable(str(tmp_path / 'c.pth'))


def test_load_weights_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / 'a.pth'
    for text in ('not a checkpoint', 'hello\n', 'a: [\n', ''):
        path.write_text(text)
        with pytest.raises(ValueError, match=r'a.pth` is not a checkpoint'):
            launch.load_weights(_model(), str(path))
    authors = _save(tmp_path / 'b.pth', {'model': {'w': torch.zeros(1)}})
    with pytest.raises(ValueError, match='keys: model.*model_converters'):
        launch.load_weights(_model(), authors)
    other = _save(tmp_path / 'c.pth', [1, 2])
    with pytest.raises(ValueError, match='holds no weights'):
        launch.load_weights(_model(), other)
