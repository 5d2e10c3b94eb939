"""Specialisations of the SSD kernels that have to compile."""

from typing import Any

import triton.language as tl

from mmssm.kernels.triton import ssd_chunk_scan_bwd, ssd_chunk_scan_fwd
from tests.test_kernels.aot import AOTCase

_DATA = ('x', 'dt', 'B', 'C', 'z', 'grad_y', 'out', 'dx')
_DATA += ('left', 'right', 'gate')
_SIZES = ('length', 'heads', 'chunks', 'heads_per_group')
_OPTIONAL = ('D', 'z', 'gate', 'segments', 'dt_bias', 'dD', 'first', 'last')


def _type(argument: str, data: str) -> str:
    if argument in _SIZES:
        return 'i32'
    if argument.startswith('stride_'):
        return 'i32:16'
    if argument == 'segments':
        return '*i32'
    return data if argument in _DATA else '*fp32'


def _case(
    name: str,
    kernel: Any,
    data: str,
    constants: dict[str, Any],
    absent: tuple[str, ...] = (),
) -> AOTCase:
    """Describe the arguments of ``kernel`` by their names.

    The last axes are contiguous. ``constants`` may hold more than the kernel
    has.
    """
    arguments = AOTCase(name, kernel, {}, {}).function.arg_names
    units = [f'stride_{tensor}_{axis}' for tensor in _DATA for axis in 'pn']
    known = constants | dict.fromkeys([*units, 'stride_dt_head'], 1)
    known |= dict.fromkeys(absent)
    return AOTCase(
        name,
        kernel,
        {a: _type(a, data) for a in arguments if a not in known},
        {a: known[a] for a in arguments if a in known},
    )


def _matrix_case(
    name: str, kernel: Any, exact: bool, **constants: Any
) -> AOTCase:
    """bfloat16 with all options, or exact float32 without any."""
    block = 32 if exact else 64
    constants = {
        'HEADDIM': 64,
        'STATE': 64 if exact else 128,
        'CHUNK': 64,
        'BLOCK_P': block,
        'BLOCK_N': block,
        'OPERAND': tl.float32 if exact else tl.bfloat16,
        'UPCAST': False,
        'PRECISION': 'ieee' if exact else 'tf32',
        **constants,
    }
    return _case(
        f'{name}-fp32' if exact else f'{name}-bf16-all',
        kernel,
        '*fp32' if exact else '*bf16',
        constants,
        absent=_OPTIONAL if exact else (),
    )


_STATES = ssd_chunk_scan_fwd._ssd_chunk_scan_fwd_kernel_states
_OUTPUT = ssd_chunk_scan_fwd._ssd_chunk_scan_fwd_kernel_output
_INPUTS = ssd_chunk_scan_bwd._ssd_chunk_scan_bwd_kernel_inputs
_MATRICES = ssd_chunk_scan_bwd._ssd_chunk_scan_bwd_kernel_matrices

CASES = [
    _case(
        'bf16',
        ssd_chunk_scan_fwd._ssd_chunk_scan_fwd_kernel_decay,
        '*bf16',
        {'CHUNK': 64, 'BLOCK_H': 16, 'SOFTPLUS': True},
    ),
    _case(
        'reverse',
        ssd_chunk_scan_fwd._ssd_chunk_scan_fwd_kernel_pass,
        '*fp32',
        {'SIZE': 64 * 64, 'CHUNK': 64, 'BLOCK': 1024, 'REVERSE': True},
    ),
    _matrix_case('forward', _STATES, exact=True, ADJOINT=False),
    _matrix_case('adjoint', _STATES, exact=False, ADJOINT=True),
    _matrix_case('output', _OUTPUT, exact=True, BLOCK_N=16),
    _matrix_case('output', _OUTPUT, exact=False, BLOCK_N=32),
    _matrix_case('inputs', _INPUTS, exact=True, BLOCK_N=16),
    _matrix_case('inputs', _INPUTS, exact=False, BLOCK_N=32),
    _matrix_case('matrices', _MATRICES, exact=True, BLOCK_P=16),
    _matrix_case('matrices', _MATRICES, exact=False, BLOCK_P=32),
]
