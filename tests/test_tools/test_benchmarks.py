"""tools/benchmarks: every script at tiny sizes; no time is judged."""

import itertools
import runpy
import sys
from importlib.util import find_spec

import pytest
import torch

from mmssm.ops.availability import native_obstacle
from mmssm.testing.benchmark import (
    Timing,
    format_table,
    measure,
    training_step,
)
from tests.test_apis.tiny_recognizer import build_model, write_files
from tests.test_tools.commands import TOOLS

STREAMING = 'benchmark_streaming_step.py'
TINY = ('--repeats', 1, '--threads', 1)
SCAN_SIZES = ('--batch', 1, '--dim', 4, '--length', 5, '--state', 2)
SSD_SIZES = ('--length', 5, '--heads', 2, '--headdim', 4, '--state', 2)


class NotInstalled:
    """Finder of modules that does not find one package."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name == self.package:
            raise ModuleNotFoundError(f'No module {name!r}', name=name)
        return None


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script in this process: exit code, output and errors."""
    threads = torch.get_num_threads()

    def run(name, *arguments):
        arguments = [*map(str, TINY), *map(str, arguments)]
        monkeypatch.setattr(sys, 'argv', [name, *arguments])
        script = TOOLS / 'benchmarks' / f'benchmark_{name}.py'
        code = runpy.run_path(str(script))['main']()
        return code, *capsys.readouterr()

    yield run
    torch.set_num_threads(threads)


@pytest.mark.skipif(not find_spec('mambapy'), reason='needs mmssm[bench]')
def test_selective_scan(run):
    code, output, _ = run('selective_scan', *SCAN_SIZES)
    assert code == 0
    for row in ('reference', 'torch', 'mambapy', 'exp alone'):
        assert output.count(f'\n{row} ') == 2  # forward, forward + backward


@pytest.mark.skipif(not find_spec('transformers'), reason='needs mmssm[bench]')
def test_ssd_chunk_scan(run):
    code, output, _ = run('ssd_chunk_scan', *SSD_SIZES, '--chunk-size', 2)
    assert code == 0
    assert output.count('\ntransformers ') == 2


@pytest.mark.parametrize(
    ('script', 'sizes', 'peer', 'own_row'),
    [
        ('selective_scan', SCAN_SIZES, 'mambapy', 'torch'),
        ('ssd_chunk_scan', SSD_SIZES, 'transformers', 'mmssm'),
    ],
)
def test_missing_peer(run, monkeypatch, script, sizes, peer, own_row):
    for name in [m for m in sys.modules if m.split('.')[0] == peer]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, 'meta_path', [NotInstalled(peer), *sys.meta_path])
    code, output, errors = run(script, *sizes)
    assert code == 1
    assert output.count(f'\n{own_row} ') == 2
    assert 'pip install "mmssm[bench]"' in errors


def test_pole_scan(run):
    sizes = ('--batch', 1, '--length', 5, '--channels', 4, '--groups', 2)
    code, output, errors = run('pole_scan', *sizes, '--state', 2)
    assert output.count('\nreference ') == 2
    if native_obstacle():
        assert code == 1
        assert native_obstacle() in errors
    else:
        assert code == 0
        assert output.count('\nselective_scan ') == 4


def test_small_ops(run):
    code, output, _ = run('small_ops', '--only', 'cayley_rotate')
    assert code == 0
    assert output.count('\ndense solve ') == 2


def test_tcp_vim(run):
    code, output, _ = run('tcp_vim', '--size', 32, '--batch', 1)
    assert code == 0
    for row in ('recurrence, forward, batch 1', 'mixer, forward, batch 1'):
        assert row in output
    assert 'aten::mm' in output


def test_scaling(run):
    code, output, _ = run(
        'scaling', '--dim', 32, '--shortest', 8, '--longest', 16, '--markdown'
    )
    assert code == 0
    for length in (8, 16):
        assert output.count(f'\n| {length} | ') == 3


def test_streaming_step(run, tmp_path):
    config, _ = write_files(tmp_path, build_model())
    code, output, _ = run(
        'streaming_step', '--config', config, '--early', 1, '--late', 7
    )
    assert code == 0
    assert '\nweights read by gemv ' in output
    assert '\nlate frame ' in output
    assert 'MB after 8 frames' in output


def test_weights_of_a_frame():
    script = runpy.run_path(str(TOOLS / 'benchmarks' / STREAMING))
    model = build_model().temporal
    matrices, extra = script['split_weights'](model, clip_len=5)
    # visual_proj; in each block 3 projections, 2 of each path, 2 of the
    # intensity and 2 of the feed-forward network.
    assert len(matrices) == 1 + 2 * 11
    # Chunks of 4 and 2 in clips of 5: both paths rotate twice, the fast one
    # not at the end of the clip.
    one = 4 * sum(
        p.numel() for p in model.blocks[0].mixer.slow.regramming.parameters()
    )
    assert extra == pytest.approx(2 * (2 + 2) / 5 * one)


def test_cases_take_turns():
    order = []
    cases = {name: lambda name=name: order.append(name) for name in ('a', 'b')}
    timings = measure(cases, repeats=3)
    assert [len(timing.wall) for timing in timings.values()] == [3, 3]
    turns = [name for name, _ in itertools.groupby(order)]
    assert turns == ['a', 'b'] * (1 + 3)  # the first two are the warm-up


def test_ratio_is_that_of_the_rounds():
    # Twice as long in every round, though the machine slows down threefold.
    ours, peer = Timing([1.0, 3.0], [1.0, 1.0]), Timing([2.0, 6.0], [3.0, 3.0])
    assert peer.wall_over(ours) == 2
    assert peer.cpu_over(ours) == 3


def test_training_step_gives_every_gradient():
    a, b = torch.rand(2, 3), torch.rand(3)
    grads = training_step(lambda a, b: a * b, [a, b])()
    assert [g.shape for g in grads] == [a.shape, b.shape]
    assert not a.requires_grad


def test_table():
    rows = [('a', 1.23456), ('bb', 7)]
    assert format_table(('x', 'y'), rows, True) == (
        '| x | y |\n| --- | --- |\n| a | 1.23 |\n| bb | 7 |'
    )
    assert format_table(('x', 'y'), rows, False) == (
        'x      y\na   1.23\nbb     7'
    )
