"""The GPU check: what of it can run without a GPU."""

import runpy
import sys

import pytest
import torch

from mmssm.ops.availability import native_obstacle
from mmssm.testing.real_size_cases import real_size_cases
from tests.test_tools.commands import TOOLS, run_unchecked, tool

RACES = 'benchmarks/check_races.py'


@pytest.mark.parametrize('backend', ['torch', 'native'])
def test_repeated_runs_are_the_same(backend, tmp_path):
    if backend == 'native' and native_obstacle():
        pytest.skip(native_obstacle())
    options = ('--device', 'cpu', '--batch', 1, '--repeats', 2)
    if backend == 'native':
        # Operators without a native kernel are refused.
        cases = real_size_cases('cpu', torch.float32, batch=1)
        for case in list(cases)[:4]:
            first, again = (
                case.outputs_and_gradients('native') for _ in range(2)
            )
            assert all(map(torch.equal, first, again)), case.name
        return
    output = tool(RACES, *options, '--backend', backend, cwd=tmp_path)
    assert output.count(': same') == 14
    assert 'all the same' in output


def test_a_difference_is_found():
    races = runpy.run_path(str(TOOLS / RACES))
    a, b = torch.zeros(3), torch.zeros(3)
    assert races['first_difference']((a, b), (a, b)) is None
    assert races['first_difference']((a, b), (a, b + 1e-7)) == 1


@pytest.mark.parametrize(
    'command',
    [
        (sys.executable, TOOLS / RACES),
        (sys.executable, TOOLS / 'benchmarks/benchmark_gpu.py'),
    ],
    ids=['races', 'benchmark'],
)
def test_no_gpu_is_said(command, tmp_path):
    result = run_unchecked(*command, cwd=tmp_path)
    assert result.returncode == 2
    assert 'No CUDA device was found' in result.stdout


def test_whole_check_without_gpu(tmp_path):
    result = run_unchecked(
        'bash', TOOLS / 'gpu_check.sh', cwd=tmp_path, PYTHON=sys.executable
    )
    assert result.returncode == 2
    assert 'No CUDA device was found' in result.stderr
