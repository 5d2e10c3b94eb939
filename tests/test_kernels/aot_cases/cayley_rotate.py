"""Specialisations of the kernels of the Cayley rotation."""

from typing import Any

from mmssm.kernels.triton import (
    cayley_rotate_bwd,
    cayley_rotate_dense,
    cayley_rotate_fwd,
)
from tests.test_kernels.aot import AOTCase

_INPUTS = ('state', 'rows', 'U', 'V', 'theta', 'dstate', 'dU', 'dV')
_UNIT_STRIDES = tuple(
    f'stride_{name}'
    for name in (
        *('grad_n', 'state_n', 'dstate_n', 'rows_n', 'out_n'),
        *('U_r', 'V_r', 'theta_r', 'dU_r', 'dV_r'),
    )
)
# The largest systems: 2 x 32 unknowns, and a dense state of 64.
_SIZES = {'HEADDIM': 64, 'RANK': 32, 'HALF': 32, 'SIZE': 64}
_SIZES |= dict.fromkeys(('BLOCK_P', 'BLOCK_N', 'BLOCK_R'), 16)


def _case(kernel: Any, data: str, **constants: int) -> AOTCase:
    """Describe the arguments by their names."""
    arguments = AOTCase('', kernel, {}, {}).function.arg_names
    known = _SIZES | dict.fromkeys(_UNIT_STRIDES, 1) | constants
    types = {}
    for argument in arguments:
        if argument in known:
            continue
        if argument == 'heads':
            types[argument] = 'i32'
        elif argument.startswith('stride_'):
            types[argument] = 'i32:16'
        else:
            types[argument] = data if argument in _INPUTS else '*fp32'
    return AOTCase(
        data.removeprefix('*'),
        kernel,
        types,
        {a: known[a] for a in arguments if a in known},
    )


CASES = [
    _case(
        cayley_rotate_fwd._cayley_rotate_kernel_inverse,
        '*bf16',
        STATE=128,
    ),
    _case(cayley_rotate_fwd._cayley_rotate_fwd_kernel, '*bf16', STATE=128),
    _case(
        cayley_rotate_bwd._cayley_rotate_bwd_kernel_state, '*fp32', STATE=128
    ),
    _case(
        cayley_rotate_bwd._cayley_rotate_bwd_kernel_factors, '*bf16', STATE=128
    ),
    _case(
        cayley_rotate_dense._cayley_rotate_kernel_dense_inverse,
        '*bf16',
        STATE=64,
    ),
    _case(
        cayley_rotate_dense._cayley_rotate_kernel_dense_apply,
        '*bf16',
        STATE=64,
        TRANSPOSED=True,
    ),
    _case(
        cayley_rotate_dense._cayley_rotate_bwd_kernel_dense_factors,
        '*bf16',
        STATE=64,
    ),
]
