"""Triton is imported by the kernels only."""

import subprocess
import sys

_PROGRAM = """
import importlib
import pkgutil
import sys

import mmssm
import mmssm.ops

for module in pkgutil.walk_packages(mmssm.ops.__path__, 'mmssm.ops.'):
    importlib.import_module(module.name)
import mmssm.kernels

print('triton' in sys.modules)
"""


def test_operators_do_not_import_triton():
    done = subprocess.run(
        [sys.executable, '-c', _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == 'False'
