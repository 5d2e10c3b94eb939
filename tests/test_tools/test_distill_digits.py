"""The digits demo, the extraction of students, and the SPR example."""

import re
import runpy
import sys

import pytest
import torch

from mmssm.testing.sample_videos import make_tiny_videos
from tests.test_tools.commands import TOOLS, run, run_unchecked, tool

CONFIGS = TOOLS.parent / 'configs'
TCP = CONFIGS / 'tcp_vim/tcp-vim-tiny_digits.py'
DISTILL = CONFIGS / 'tcp_vim/tcp-vim-tiny_digits_distill.py'
VIM = CONFIGS / 'vim/vim-tiny_digits.py'
SAMPLE = CONFIGS / 'surgical_mamba/surgical-mamba_tiny_sample.py'
SAMPLE_DISTILL = (
    CONFIGS / 'surgical_mamba/surgical-mamba_tiny_sample_distill.py'
)

needs_digits = [
    pytest.importorskip(name) for name in ('mmpretrain', 'sklearn')
]


def demo(cwd, *arguments):
    return run(
        sys.executable,
        TOOLS / 'demo/distill_digits.py',
        *arguments,
        cwd=cwd,
        OMP_NUM_THREADS='1',
    )


@pytest.fixture(scope='module')
def tiny_demo(tmp_path_factory):
    """The demo with 128 images and 2 epochs."""
    root = tmp_path_factory.mktemp('demo')
    sizes = ['--epochs', 2, '--images', 128, '--small-epochs', 2]
    output = demo(
        root,
        *('--out', 'out', '--seeds', 0, *sizes, '--small-images', 128),
        *('--teacher-epochs', 2, '--modal', '--no-fail'),
    )
    return root, output


def test_demo_prints_its_table(tiny_demo):
    _, output = tiny_demo
    rows = [line for line in output.splitlines() if line.startswith('│')]
    table = [[cell.strip() for cell in row.split('│')] for row in rows]
    text = '\n'.join(' '.join(row) for row in table)
    for number in ('169,098', '185,882', '186,202'):
        assert number in text, output
    assert output.count('seed 0: top-1') == 8
    assert 'holds: the weights of the teacher are untouched' in output
    assert re.search(r"the paper's weight of 0.06 does here", output)


def test_demo_resumes(tiny_demo):
    root, output = tiny_demo
    again = demo(
        root,
        *('--out', 'out', '--seeds', 0, '--epochs', 2, '--small-epochs', 2),
        *('--teacher', 'out/teacher/epoch_2.pth', '--resume', '--no-fail'),
    )
    for line in re.findall(r'^TCP-Vim.*seed 0.*$', output, re.MULTILINE)[:2]:
        assert line in again


def test_checks_of_the_demo_can_fail(capsys):
    module = runpy.run_path(str(TOOLS / 'demo/distill_digits.py'))
    result = module['Result']

    def results(alone=95.0, start=96.0, near=0.06, far=0.1, untouched=True):
        main = dict(
            alone=[result(alone, 1, None, True)],
            start=[result(start, 1, far, untouched)],
        )
        small = dict(
            small_start=[result(90, 1, far, True)],
            small_strong=[result(90, 1, near, True)],
        )
        return main, small

    assert module['check'](*results())
    assert 'FAILS' not in capsys.readouterr().out
    for bad in (dict(start=95.4), dict(near=0.08), dict(untouched=False)):
        assert not module['check'](*results(**bad))
        assert capsys.readouterr().out.count('FAILS') == 1


def test_extracted_student_is_a_plain_checkpoint(tiny_demo):
    root, output = tiny_demo
    out = tool(
        'model_converters/extract_student.py',
        'out/distilled_seed0/epoch_2.pth',
        'student.pth',
        cwd=root,
    )
    assert '107 tensors, 185,882 parameters' in out
    assert not list(root.glob('*.partial'))
    printed = tool('test.py', TCP, 'student.pth', cwd=root)
    accuracy = re.search(
        r'distillation, weight 0.06, seed 0: top-1 ([\d.]+)', output
    )[1]
    tested = re.search(r'accuracy/top1: ([\d.]+)', printed)[1]
    assert float(tested) == pytest.approx(float(accuracy), abs=0.01)
    for source, message in (
        ('student.pth', "no weights under 'student.'"),
        ('nothing.pth', 'no checkpoint at'),
    ):
        result = run_unchecked(
            sys.executable,
            TOOLS / 'model_converters/extract_student.py',
            *(source, 'never.pth'),
            cwd=root,
        )
        assert result.returncode == 1 and message in result.stderr
        assert 'Traceback' not in result.stderr
    assert not (root / 'never.pth').exists()


def test_a_distiller_is_tested_by_its_own_config(tiny_demo):
    """Without the teacher's file, which is there for the training only."""
    root, _ = tiny_demo
    output = tool(
        'test.py', DISTILL, 'out/distilled_seed0/epoch_2.pth', cwd=root
    )
    assert re.search(r'accuracy/top1: [\d.]+', output)


def test_recognizer_is_distilled_on_the_sample_videos(tmp_path):
    make_tiny_videos(tmp_path / 'data', num_train=2, num_test=1)
    loaders = ('train', 'val', 'test')
    common = [
        *(f'{x}_dataloader.dataset.data_root=data' for x in loaders),
        *(f'{x}_dataloader.dataset.clip_len=8' for x in loaders),
        'train_dataloader.dataset.split=[1,2]',
        *(f'{x}_dataloader.dataset.split=[3]' for x in loaders[1:]),
        'default_hooks.logger.interval=1',
        'train_cfg.max_epochs=1',
        'train_cfg.val_interval=1',
        'param_scheduler=None',
    ]
    tool(
        'train.py',
        SAMPLE,
        *('--work-dir', 'teacher', '--cfg-options', *common),
        'model.clip_len=8',
        'model.backbone.init_cfg=None',
        cwd=tmp_path,
    )
    output = tool(
        'train.py',
        SAMPLE_DISTILL,
        *('--work-dir', 'student', '--cfg-options', *common),
        'model.student.clip_len=8',
        'model.teacher.clip_len=8',
        'model.teacher_ckpt=teacher/epoch_1.pth',
        cwd=tmp_path,
    )
    assert re.search(r'the student starts with \d+ of its \d+ tensors', output)
    distances = re.findall(r'feature_l1: ([\d.]+)', output)
    assert len(distances) >= 2 and all(float(d) > 0 for d in distances)
    saved = torch.load(tmp_path / 'student/epoch_1.pth', weights_only=False)
    assert all(name.startswith('student.') for name in saved['state_dict'])
    assert 'accuracy' in output  # of the validation


@pytest.mark.slow
def test_configs_reach_their_accuracy(tmp_path):
    """About 5 CPU-minutes."""
    for config in (TCP, VIM):
        output = run(
            sys.executable,
            TOOLS / 'train.py',
            config,
            cwd=tmp_path,
            OMP_NUM_THREADS='1',
        )
        accuracy = re.findall(r'accuracy/top1: ([\d.]+)', output)[-1]
        assert float(accuracy) >= 97, config


@pytest.mark.slow
def test_demo_holds(tmp_path):
    """About 15 CPU-minutes; it fails where a check does."""
    assert demo(tmp_path).count('holds: ') == 3
