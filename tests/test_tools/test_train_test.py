"""Training, testing and launching, with configs of the parent libraries."""

import os
import pickle
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import CheckpointLoader

import mmssm.models  # noqa: F401
from mmssm.registry import MODELS
from tests.test_tools import tiny_projects
from tests.test_tools.commands import (
    TOOLS,
    free_port,
    run,
    run_unchecked,
    tool,
)


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train an mmpretrain classifier for two iterations."""
    root = tmp_path_factory.mktemp('classification')
    config = tiny_projects.write_classification(root)
    tool('train.py', config, cwd=root)
    return root


@pytest.fixture(scope='module')
def single(trained: Path) -> list[dict]:
    """Return the predictions of one process."""
    tool(
        'test.py',
        'config.py',
        'work/iter_2.pth',
        '--out',
        'single.pkl',
        cwd=trained,
    )
    return pickle.loads((trained / 'single.pkl').read_bytes())


def _scores(predictions: list[dict]) -> np.ndarray:
    """Return the scores of all samples, shape ``(samples, classes)``."""
    return torch.stack([p['pred_score'] for p in predictions]).numpy()


def _accuracy(predictions: list[dict]) -> float:
    """Return top-1 accuracy in percent."""
    hits = [
        p['pred_label'].item() == p['gt_label'].item() for p in predictions
    ]
    return 100 * sum(hits) / len(hits)


def test_classifier_trains_and_tests(
    trained: Path, single: list[dict]
) -> None:
    logs = (trained / 'work').glob('2*/2*.log')
    log = ''.join(path.read_text() for path in logs)
    assert 'Iter(train) [2/2]' in log
    assert 'accuracy/top1' in log
    assert (trained / 'work/iter_2.pth').is_file()
    assert len(single) == 9
    np.testing.assert_allclose(_scores(single).sum(1), 1, atol=1e-5)


def test_training_resumes(trained: Path) -> None:
    output = tool(
        'train.py',
        'config.py',
        '--resume',
        'work/iter_2.pth',
        '--work-dir',
        'resumed',
        '--cfg-options',
        'train_cfg.max_iters=3',
        'train_cfg.val_interval=9',
        cwd=trained,
    )
    assert 'Iter(train) [3/3]' in output
    assert 'Iter(train) [2/3]' not in output
    # Without a value it takes the latest of the work directory.
    output = tool(
        'train.py',
        'config.py',
        '--resume',
        '--work-dir',
        'resumed',
        '--cfg-options',
        'train_cfg.max_iters=4',
        'train_cfg.val_interval=9',
        cwd=trained,
    )
    assert 'Iter(train) [4/4]' in output
    assert 'Iter(train) [3/4]' not in output
    checkpoint = CheckpointLoader.load_checkpoint(
        str(trained / 'resumed/iter_4.pth')
    )
    assert checkpoint['meta']['iter'] == 4


def test_training_options_reach_the_run(trained: Path) -> None:
    output = tool(
        'train.py',
        'config.py',
        '--work-dir',
        'options',
        '--amp',
        '--auto-scale-lr',
        '--seed',
        '7',
        '--cfg-options',
        'train_cfg.max_iters=1',
        cwd=trained,
    )
    assert 'mixed precision runs in bfloat16 on the CPU' in output
    # 4 samples instead of 16: a quarter of 0.01.
    assert 'lr: 2.5000e-03' in output
    cfg = Config.fromfile(trained / 'options/config.py')
    assert cfg.randomness.seed == 7
    assert cfg.optim_wrapper.type == 'CPUAmpOptimWrapper'


def test_two_processes_test_like_one(
    trained: Path, single: list[dict]
) -> None:
    output = run(
        'bash',
        TOOLS / 'dist_test.sh',
        'config.py',
        'work/iter_2.pth',
        2,
        '--out',
        'double.pkl',
        cwd=trained,
        PORT=free_port(),
    )
    double = pickle.loads((trained / 'double.pkl').read_bytes())
    assert len(double) == 9
    np.testing.assert_allclose(_scores(double), _scores(single), atol=1e-6)
    assert f'accuracy/top1: {_accuracy(single):.4f}' in output
    # One of the test images is in the wrong folder.
    assert 0 < _accuracy(single) < 100


def test_two_processes_train(trained: Path) -> None:
    output = run(
        'bash',
        TOOLS / 'dist_train.sh',
        'config.py',
        2,
        '--work-dir',
        'distributed',
        '--cfg-options',
        'train_dataloader.batch_size=2',
        cwd=trained,
        PORT=free_port(),
    )
    assert 'Iter(train) [2/2]' in output
    assert (trained / 'distributed/iter_2.pth').is_file()
    cfg = Config.fromfile(trained / 'distributed/config.py')
    assert cfg.model_wrapper_cfg.type == 'CPUDistributedDataParallel'


def test_segmenter_trains_and_writes_images(tmp_path: Path) -> None:
    config = tiny_projects.write_segmentation(tmp_path)
    output = tool('train.py', config, cwd=tmp_path)
    assert 'Iter(train) [2/2]' in output
    output = tool(
        'test.py',
        config,
        'work/iter_2.pth',
        '--out',
        'masks',
        '--show-dir',
        'painted',
        cwd=tmp_path,
    )
    assert 'mIoU' in output
    assert sorted(p.name for p in (tmp_path / 'masks').iterdir()) == [
        '0.png',
        '1.png',
    ]
    assert len(list((tmp_path / 'painted').rglob('*.png'))) == 2


def test_detector_trains_on_the_stand_in(tmp_path: Path) -> None:
    config = tiny_projects.write_detection(tmp_path)
    output = tool('train.py', config, cwd=tmp_path)
    assert 'loss_mask' in output
    output = tool(
        'test.py',
        config,
        'work/iter_2.pth',
        '--out',
        'detections.pkl',
        cwd=tmp_path,
    )
    assert 'coco/segm_mAP' in output
    detections = pickle.loads((tmp_path / 'detections.pkl').read_bytes())
    assert len(detections) == 4
    instances = detections[0]['pred_instances']
    assert len(instances['bboxes']) == len(instances['masks']) > 0
    # Encoded, not as arrays.
    assert set(instances['masks'][0]) == {'size', 'counts'}


@pytest.mark.parametrize(
    ('name', 'args', 'message'),
    [
        ('train.py', ['confg.py'], 'did you mean\n  config.py'),
        ('train.py', ['config.py', '--resume', 'x.pth'], 'checkpoint `x.pth`'),
        ('test.py', ['config.py', 'work/iter_9.pth'], 'work/iter_2.pth'),
        ('train.py', ['config.py', '--resume', 'bare.txt'], '`bare.txt` is'),
        ('test.py', ['config.py', 'bare.txt'], '`bare.txt` is not a check'),
        (
            'train.py',
            ['config.py', '--launcher', 'slurm'],
            'SLURM_NODELIST, SLURM_PROCID',
        ),
        (
            'test.py',
            ['config.py', 'work/iter_2.pth', '--launcher', 'mpi'],
            'OMPI_COMM_WORLD_RANK',
        ),
        ('train.py', ['config.py', '--cfg-options', 'foo'], 'KEY=VALUE'),
        ('misc/print_config.py', ['bare.txt'], '`bare.txt` cannot be read'),
        (
            'misc/print_config.py',
            ['config.py', '--save-path', 'none/x.py'],
            "No such file or directory: 'none/x.py'",
        ),
        (
            'misc/print_config.py',
            ['config.py', '--save-path', 'x.txt'],
            'ending in one of .py',
        ),
    ],
)
def test_mistakes_are_explained(
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    name: str,
    args: list[str],
    message: str,
) -> None:
    (trained / 'bare.txt').write_text('hello\n')
    monkeypatch.chdir(trained)
    for variable in ('SLURM_NODELIST', 'OMPI_COMM_WORLD_RANK'):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, 'argv', [name, *args])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(TOOLS / name), run_name='__main__')
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err.partition(': error: ')[2]


@pytest.mark.parametrize(
    ('out', 'message'),
    [
        ('new', 'no metric of this config writes predictions to one'),
        ('file', 'is a file of another kind; expected a directory'),
        ('p.json', 'is a file of another kind; expected a directory'),
        ('folder.pkl', 'is a directory; expected a file'),
        ('file/p.pkl', 'the directory cannot be made'),
    ],
)
def test_output_is_checked_before_the_test(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    out: str,
    message: str,
) -> None:
    (tmp_path / 'file').touch()
    (tmp_path / 'folder.pkl').mkdir()
    monkeypatch.chdir(tmp_path)
    config, checkpoint = trained / 'config.py', trained / 'work/iter_2.pth'
    argv = ['test.py', str(config), str(checkpoint), '--out', out]
    monkeypatch.setattr(sys, 'argv', argv)
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(TOOLS / 'test.py'), run_name='__main__')
    assert exit_info.value.code == 2
    error = capsys.readouterr().err.partition(': error: ')[2]
    assert f'--out {out}' in error and message in error
    assert len(list(tmp_path.iterdir())) == 2


def test_output_may_be_a_directory_with_dots(tmp_path: Path) -> None:
    tool_globals = runpy.run_path(str(TOOLS / 'test.py'))
    (tmp_path / 'old.json').mkdir()
    for name in ('old.json', 'predictions.v2/a', 'b/c.pkl'):
        tool_globals['check_output'](str(tmp_path / name))
        tool_globals['make_output'](str(tmp_path / name))
    assert (tmp_path / 'predictions.v2/a').is_dir()
    assert list((tmp_path / 'b').iterdir()) == []


def test_auto_scale_lr_needs_a_batch_size(
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (trained / 'bare.py').write_text('train_dataloader = dict()\n')
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, 'argv', ['x', 'bare.py', '--auto-scale-lr'])
    with pytest.raises(SystemExit):
        runpy.run_path(str(TOOLS / 'train.py'), run_name='__main__')
    assert 'base_batch_size' in capsys.readouterr().err


def test_checkpoint_of_another_model_is_refused(trained: Path) -> None:
    result = run_unchecked(
        sys.executable,
        TOOLS / 'test.py',
        'config.py',
        'work/iter_2.pth',
        '--cfg-options',
        'model.head.num_classes=5',
        cwd=trained,
    )
    assert result.returncode == 2
    error = result.stderr.partition('test.py: error: ')[2]
    assert 'size mismatch for head.fc.weight' in error


def test_checkpoint_of_another_recognizer_is_refused(tmp_path: Path) -> None:
    configs = TOOLS.parent / 'configs/surgical_mamba'
    cfg = Config.fromfile(configs / 'surgical-mamba_tiny_sample.py')
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model)
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'mamba.pth')
    result = run_unchecked(
        sys.executable,
        TOOLS / 'test.py',
        configs / 'framewise_tiny_sample.py',
        'mamba.pth',
        cwd=tmp_path,
    )
    assert result.returncode == 2, result.stdout + result.stderr
    error = result.stderr.partition('test.py: error: ')[2]
    assert '`mamba.pth` does not fit' in error
    assert 'keys not in the model: ' in error
    assert 'Use the config that the checkpoint was trained with' in error


def test_print_config_merges_bases(tmp_path: Path) -> None:
    output = tool(
        'misc/print_config.py',
        'mmseg::upernet/upernet_r50_4xb2-40k_cityscapes-512x1024.py',
        '--cfg-options',
        'model.decode_head.channels=7',
        '--save-path',
        'saved.py',
        cwd=tmp_path,
    )
    assert "type='UPerHead'" in output
    cfg = Config.fromfile(tmp_path / 'saved.py')
    assert cfg.model.decode_head.channels == 7
    assert 'CityscapesDataset' in output


def _stub(folder: Path, name: str) -> None:
    """Write a command that prints its arguments, one per line."""
    script = folder / name
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script.chmod(0o755)


@pytest.mark.parametrize(
    ('script', 'args', 'expected'),
    [
        (
            'dist_train.sh',
            ['a b.py', '4', '--amp'],
            ['--nproc_per_node=4', 'train.py', 'a b.py', '--launcher'],
        ),
        (
            'dist_test.sh',
            ['c.py', 'd.pth', '2', '--out', 'e f'],
            ['--nproc_per_node=2', 'test.py', 'c.py', 'd.pth', '--launcher'],
        ),
        (
            'slurm_train.sh',
            ['gpu', 'job', 'c.py', 'work', '--amp'],
            ['train.py', 'c.py', '--work-dir=work', '--launcher=slurm'],
        ),
        (
            'slurm_train.sh',
            ['gpu', 'job', 'c.py', '--amp'],
            ['train.py', 'c.py', '--launcher=slurm', '--amp'],
        ),
        (
            'slurm_test.sh',
            ['gpu', 'job', 'c.py', 'd.pth', '--out', 'e'],
            ['test.py', 'c.py', 'd.pth', '--launcher=slurm'],
        ),
    ],
)
def test_scripts_pass_their_arguments(
    tmp_path: Path, script: str, args: list[str], expected: list[str]
) -> None:
    for name in ('python', 'srun'):
        _stub(tmp_path, name)
    env = dict(
        PATH=f'{tmp_path}{os.pathsep}{os.environ["PATH"]}',
        PORT='1234',
        GPUS='16',
        SRUN_ARGS='--quotatype=auto --x',
    )
    output = run('bash', TOOLS / script, *args, cwd=tmp_path, **env)
    # Paths of the tools are compared by name.
    lines = [
        Path(line).name if line.endswith(('train.py', 'test.py')) else line
        for line in output.splitlines()
    ]
    positions = [lines.index(word) for word in expected]
    assert positions == sorted(positions)
    assert lines[-1] == expected[-1] or lines[-1] == args[-1]
    if script.startswith('dist'):
        assert '--master_port=1234' in lines
    else:
        assert {'--ntasks=16', '--gres=gpu:8', '--quotatype=auto'} < set(lines)


@pytest.mark.parametrize(
    'script',
    ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh', 'slurm_test.sh'],
)
def test_scripts_explain_themselves(tmp_path: Path, script: str) -> None:
    result = run_unchecked('bash', TOOLS / script, 'x', cwd=tmp_path)
    assert result.returncode == 2
    assert f'bash tools/{script}' in result.stderr
    assert 'set -e' not in result.stderr
