"""The sample configs through the tools: train, test, resume, two processes."""

import csv
import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mmssm.evaluation.functional import read_predictions, stack_predictions
from mmssm.testing.sample_videos import make_tiny_videos
from tests.test_tools.commands import TOOLS, free_port, run, tool

CONFIGS = TOOLS.parent / 'configs' / 'surgical_mamba'
RECOGNIZER = CONFIGS / 'surgical-mamba_tiny_sample.py'
FRAMEWISE = CONFIGS / 'framewise_tiny_sample.py'
CLIP_LEN = 8


def options(*more):
    """Shrink a sample config to the tiny videos."""
    loaders = ('train', 'val', 'test')
    splits = ('[1,2,3]', '[4,5]', '[4,5]')
    return [
        '--cfg-options',
        *(f'{x}_dataloader.dataset.data_root=data' for x in loaders),
        *(
            f'{x}_dataloader.dataset.split={split}'
            for x, split in zip(loaders, splits, strict=True)
        ),
        'default_hooks.logger.interval=1',
        *more,
    ]


def recognizer_options(*more):
    loaders = ('train', 'val', 'test')
    return options(
        *(f'{x}_dataloader.dataset.clip_len={CLIP_LEN}' for x in loaders),
        f'model.clip_len={CLIP_LEN}',
        'model.temporal.chunk_size_slow=4',
        'model.temporal.chunk_size_fast=3',
        'model.head.chunk_size=4',
        'model.backbone.init_cfg.checkpoint=frame/epoch_1.pth',
        'train_cfg.max_epochs=2',
        'train_cfg.val_interval=1',
        'param_scheduler.1.end=2',
        'param_scheduler.1.T_max=1',
        *more,
    )


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Backbone, then recognizer, for an epoch or two on tiny videos."""
    root = tmp_path_factory.mktemp('sample')
    make_tiny_videos(root / 'data', num_train=3, num_test=2)
    tool(
        'train.py',
        FRAMEWISE,
        '--work-dir',
        'frame',
        *options(
            'train_dataloader.batch_size=16',
            'train_dataloader.sampler.frames_per_epoch=32',
            'train_cfg.max_epochs=1',
            'train_cfg.val_interval=1',
            'param_scheduler=None',
        ),
        cwd=root,
    )
    tool(
        'train.py',
        RECOGNIZER,
        '--work-dir',
        'work',
        *recognizer_options(),
        cwd=root,
    )
    return root


def score_recognizer(
    trained, out='single', launcher=(), tool_args=(), more=()
):
    """Test the trained recognizer; returns its metrics."""
    work_dir = trained / f'test_{out}'
    shutil.rmtree(work_dir, ignore_errors=True)
    command = [
        TOOLS / 'test.py',
        RECOGNIZER,
        'work/epoch_2.pth',
        '--work-dir',
        work_dir,
        '--out',
        out,
        *tool_args,
        *recognizer_options(*more),
    ]
    run(*(launcher or [sys.executable]), *command, cwd=trained)
    (log,) = work_dir.glob('*/*.json')
    metrics = json.loads(log.read_text())
    assert 0 < metrics['accuracy'] <= 100
    return metrics


def predictions(folder):
    return {
        path.stem: stack_predictions(read_predictions(path))
        for path in sorted(folder.glob('*.jsonl'))
    }


def test_backbone_starts_from_the_frame_classifier(trained):
    log = next((trained / 'work').glob('*/*.log')).read_text()
    assert 'frame/epoch_1.pth' in log
    assert 'unexpected key' not in log and 'missing keys' not in log


def test_more_lanes_than_videos_score_the_same(trained):
    one = score_recognizer(trained)
    many = score_recognizer(
        trained, 'many', more=['test_dataloader.batch_size=3']
    )
    assert many == pytest.approx(
        {**one, **{k: many[k] for k in many if 'time' in k}}
    )


def test_two_processes_test_like_one(trained):
    one = score_recognizer(trained)
    torchrun = [
        'torchrun',
        '--nproc_per_node=2',
        f'--master_port={free_port()}',
    ]
    two = score_recognizer(
        trained, 'double', torchrun, ['--launcher', 'pytorch']
    )
    scores = ('accuracy', 'precision', 'recall', 'jaccard', 'f1')
    for name in scores:
        assert two[name] == pytest.approx(one[name], abs=1e-9), name
    first = predictions(trained / 'single')
    second = predictions(trained / 'double')
    assert first.keys() == second.keys() == {'video04', 'video05'}
    for video, expected in first.items():
        np.testing.assert_array_equal(second[video].phase, expected.phase)
        np.testing.assert_allclose(
            second[video].probabilities, expected.probabilities, atol=1e-6
        )


def test_two_processes_train(trained):
    output = run(
        'bash',
        TOOLS / 'dist_train.sh',
        RECOGNIZER,
        2,
        '--work-dir',
        'two',
        *recognizer_options('train_dataloader.batch_size=1'),
        cwd=trained,
        PORT=free_port(),
    )
    assert (trained / 'two' / 'epoch_2.pth').is_file(), output
    assert 'Epoch(val) [2]' in output
    weights = torch.load(trained / 'two/epoch_2.pth', weights_only=False)
    for name, value in weights['state_dict'].items():
        assert value.isfinite().all(), name


def test_resume_goes_on_at_the_next_epoch(trained):
    shutil.copytree(trained / 'work', trained / 'resumed')
    (trained / 'resumed/last_checkpoint').write_text(
        str(trained / 'resumed/epoch_2.pth')
    )
    output = tool(
        'train.py',
        RECOGNIZER,
        '--work-dir',
        'resumed',
        '--resume',
        *recognizer_options('train_cfg.max_epochs=3'),
        cwd=trained,
    )
    assert 'Epoch(train) [3]' in output and 'Epoch(train) [1]' not in output


def test_stream_gives_the_answers_of_the_test(trained):
    score_recognizer(trained)
    config = next((trained / 'work').glob('*.py'))
    tool(
        'stream.py',
        'data/videos/video04.mp4',
        '--config',
        config,
        '--checkpoint',
        'work/epoch_2.pth',
        '--out-dir',
        'stream',
        '--gt',
        'data/phase_annotations/video04-phase.txt',
        cwd=trained,
    )
    demo = runpy.run_path(str(TOOLS / 'demo/demo.py'))
    agreement = demo['compare_stream'](
        trained / 'stream/video04.jsonl', trained / 'single/video04.jsonl'
    )
    assert agreement.holds and agreement.frames >= 20
    assert (trained / 'stream/video04_timeline.png').stat().st_size > 5000


def test_a_stream_that_differs_is_noticed(trained, tmp_path):
    score_recognizer(trained)
    source = trained / 'single/video04.jsonl'
    lines = source.read_text().splitlines()
    record = json.loads(lines[5])
    record['phase'] = (record['phase'] + 1) % 7
    lines[5] = json.dumps(record)
    (tmp_path / 'other.jsonl').write_text('\n'.join(lines) + '\n')
    demo = runpy.run_path(str(TOOLS / 'demo/demo.py'))
    agreement = demo['compare_stream'](tmp_path / 'other.jsonl', source)
    assert agreement.same_phase == agreement.frames - 1
    assert not agreement.holds


@pytest.mark.slow
def test_memory_is_worth_what_the_sample_promises(tmp_path):
    """About 15 CPU-minutes: three models, three seeds."""
    run(
        sys.executable,
        TOOLS / 'demo/demo.py',
        '--compare',
        '--out',
        tmp_path,
        cwd=tmp_path,
    )
    with (Path(tmp_path) / 'compare.csv').open() as file:
        rows = list(csv.DictReader(file))
    accuracy = {}
    for row in rows:
        seeds = accuracy.setdefault(row['model'], {})
        seeds[row['seed']] = float(row['accuracy'])
    full = accuracy['SurgicalMamba']
    assert len(full) == 3
    assert np.mean(list(full.values())) >= 92 and min(full.values()) >= 90
    for seed, value in full.items():
        assert value - accuracy['without carried state'][seed] >= 10
        assert value - accuracy['per-frame classifier'][seed] >= 25
