"""Specialisations of the pole scan."""

from mmssm.kernels.triton.pole_scan_bwd import _pole_scan_bwd_kernel_lam
from mmssm.kernels.triton.pole_scan_bwd_q import _pole_scan_bwd_kernel_q
from mmssm.kernels.triton.pole_scan_fwd import _pole_scan_fwd_kernel
from tests.test_kernels.aot import AOTCase

_SIZES = {'E': 'i32:16', 'L': 'i32', 'E_PER_G': 'i32:16'}


def _strides(*names: str) -> tuple[dict[str, str], dict[str, int]]:
    """Types and constants of tensors whose channels (or taps) are dense."""
    types, constexprs = {}, {}
    for name in names:
        axes = 'blgi' if name in ('q', 'dq') else 'blc'
        types |= {f's_{name}_{axis}': 'i32:16' for axis in axes[:-1]}
        constexprs[f's_{name}_{axes[-1]}'] = 1
    return types, constexprs


def _case(
    name: str,
    kernel: object,
    strides: tuple[str, ...],
    pointers: dict[str, str],
    absent: tuple[str, ...] = (),
    **constexprs: int,
) -> AOTCase:
    stride_types, unit_strides = _strides(*strides)
    types = {**pointers, **_SIZES, **stride_types}
    constexprs |= unit_strides | dict.fromkeys(absent)
    return AOTCase(name, kernel, types, constexprs)


def _forward(name: str, io: str, order: int, full: bool) -> AOTCase:
    pointers = {'eta': io, 'q': '*fp32', 'out': io, 'hT': '*fp32'}
    optional = {'x': io, 'z': io, 'D': '*fp32', 'h0': '*fp32', 'y': '*fp32'}
    return _case(
        name,
        _pole_scan_fwd_kernel,
        ('eta', 'q', 'x', 'z', 'out'),
        pointers | optional if full else pointers,
        () if full else tuple(optional),
        R=order,
        HAS_X=full,
        HAS_Z=full,
        HAS_H=full,
        SAVE_Y=full,
        REVERSE=full,
    )


def _adjoint(name: str, io: str, order: int, full: bool) -> AOTCase:
    pointers = {'go': io, 'deta': io}
    pointers |= dict.fromkeys(('q', 'y', 'da0', 'dh0'), '*fp32')
    optional = dict.fromkeys(('x', 'z', 'dx', 'dz'), io)
    optional |= dict.fromkeys(('D', 'dD', 'lam'), '*fp32')
    return _case(
        name,
        _pole_scan_bwd_kernel_lam,
        ('go', 'q', 'x', 'z', 'y', 'dx', 'dz'),
        pointers | optional if full else pointers,
        () if full else tuple(optional),
        R=order,
        HAS_X=full,
        HAS_Z=full,
        SAVE_LAM=full,
        REVERSE=full,
    )


def _coefficients(
    name: str, order: int, tokens: int, columns: int, full: bool
) -> AOTCase:
    pointers = dict.fromkeys(('lam', 'y', 'dq'), '*fp32')
    case = _case(
        name,
        _pole_scan_bwd_kernel_q,
        ('y', 'dq'),
        pointers | {'h0': '*fp32'} if full else pointers,
        () if full else ('h0',),
        R=order,
        HAS_H=full,
        REVERSE=full,
        BT=tokens,
        BC=columns,
    )
    case.types['G'] = 'i32'
    return case


# The adjoint holds more values than the forward sweep: it has the largest
# order.
CASES = [
    _forward('bf16-order5-all', '*bf16', 5, True),
    _forward('fp32-order1-plain', '*fp32', 1, False),
    _adjoint('bf16-order5-all', '*bf16', 5, True),
    _adjoint('fp32-order1-plain', '*fp32', 1, False),
    _adjoint('bf16-order16-all', '*bf16', 16, True),
    _coefficients('order5', 5, 16, 32, False),
    _coefficients('order16-history', 16, 8, 32, True),
    _coefficients('order5-one-channel', 5, 128, 1, True),
]
