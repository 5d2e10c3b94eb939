"""The Triton kernels in Triton's interpreter, on CPU tensors.

The interpreter has to be chosen before Python starts, so that the tests of
tests/test_ops/parity run in processes of their own: one for every operator.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = 'tests/test_ops/parity'
# What a name of an operator does not select on its own.
EXPRESSIONS = {
    'selective_scan': 'selective_scan',
    'pole_scan': 'pole_scan',
    'pole_denominator': 'pole_denominator',
    'causal_conv1d': 'causal_conv1d',
    'ssd_chunk_scan': 'ssd_chunk_scan',
    'cayley_rotate': 'cayley_rotate',
    'rms_norm_gated': 'rms_norm_gated',
}


@pytest.mark.skipif(
    importlib.util.find_spec('triton') is None,
    reason='triton is not installed',
)
@pytest.mark.parametrize('op', EXPRESSIONS)
def test_kernels_equal_definition(op):
    environment = os.environ | {'TRITON_INTERPRET': '1'}
    # Options of the run around this one are not meant for it.
    environment.pop('PYTEST_ADDOPTS', None)
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:xdist']
    command += ['--tb=short', '-W', 'ignore::RuntimeWarning', SUITE]
    command += ['-k', f'triton and {EXPRESSIONS[op]}']
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    report = f'{result.stdout[-6000:]}\n{result.stderr[-2000:]}'
    assert result.returncode == 0, report
    # An empty selection is no success.
    assert ' passed' in result.stdout, report
    assert ' skipped' not in result.stdout, report
