"""Specialisations of the causal convolution."""

from mmssm.kernels.triton.causal_conv1d_bwd import _causal_conv1d_bwd_kernel
from mmssm.kernels.triton.causal_conv1d_fwd import _causal_conv1d_fwd_kernel
from tests.test_kernels.aot import AOTCase


def _strides(names: tuple[str, ...], dense: str) -> tuple[dict, dict]:
    """Types and constants of the strides, with 1 along the axis ``dense``."""
    types, constexprs = {}, {}
    for name in names:
        types |= {f's_{name}_{axis}': 'i32:16' for axis in 'bdl'}
        del types[f's_{name}_{dense}']
        constexprs[f's_{name}_{dense}'] = 1
    return types, constexprs


def _case(
    kernel: object,
    tensors: tuple[str, ...],
    io: str,
    dense: str,
    full: bool,
    width: int,
    tile: tuple[int, int],
) -> AOTCase:
    strides, unit_strides = _strides(tensors, dense)
    types = {**strides, 'D': 'i32:16', 'L': 'i32'}
    types |= {**dict.fromkeys(tensors, io), 'weight': '*fp32'}
    constexprs = {
        **unit_strides,
        'W': width,
        'HAS_BIAS': full,
        'HAS_INIT': full,
        'SILU': full,
        'REVERSE': dense == 'l',
        'BT': tile[0],
        'BC': tile[1],
    }
    optional = {'bias': '*fp32', 'init': io}
    if 'dx' in tensors:
        types |= {'T': 'i32', 'sums': '*fp32'}
        optional['dinit'] = io
    if full:
        types |= optional
    else:
        constexprs |= dict.fromkeys(optional)
    options = 'all' if full else 'plain'
    name = f'{io[1:]}-width{width}-dense-{dense}-{options}'
    return AOTCase(name, kernel, types, constexprs)


def _forward(
    io: str, dense: str, full: bool, width: int, tile: tuple[int, int]
) -> AOTCase:
    kernel = _causal_conv1d_fwd_kernel
    return _case(kernel, ('x', 'y'), io, dense, full, width, tile)


def _backward(
    io: str, dense: str, full: bool, width: int, tile: tuple[int, int]
) -> AOTCase:
    kernel = _causal_conv1d_bwd_kernel
    return _case(kernel, ('dy', 'x', 'dx'), io, dense, full, width, tile)


CASES = [
    _forward('*bf16', 'd', True, 4, (32, 32)),
    _forward('*fp32', 'l', False, 8, (128, 8)),
    _backward('*bf16', 'd', True, 4, (16, 32)),
    _backward('*fp32', 'l', False, 4, (128, 4)),
    _backward('*fp32', 'd', True, 8, (16, 32)),
]
