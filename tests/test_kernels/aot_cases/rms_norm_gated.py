"""Specialisations of the gated RMS normalisation that have to compile."""

from typing import Any

from mmssm.kernels.triton.rms_norm_gated import (
    backward_tilings,
    forward_tiling,
)
from mmssm.kernels.triton.rms_norm_gated_bwd import _rms_norm_gated_bwd_kernel
from mmssm.kernels.triton.rms_norm_gated_fwd import _rms_norm_gated_fwd_kernel
from tests.test_kernels.aot import AOTCase

_ROWS = 12_608


def _case(
    kernel: Any,
    rows: tuple[str, ...],
    parameters: tuple[str, ...],
    scalars: dict[str, str],
    tiling: dict[str, Any],
    kind: str,
    norm_before_gate: bool,
) -> AOTCase:
    """Describe a specialisation with all options.

    Args:
        kernel (Any): The kernel.
        rows (tuple[str, ...]): Tensors ``(rows, dim)``.
        parameters (tuple[str, ...]): Other tensors, of float32.
        scalars (dict[str, str]): Types of other arguments than tensors and
            strides.
        tiling (dict[str, Any]): Keywords from the launcher.
        kind (str): Type of ``rows``.
        norm_before_gate (bool): Whether the gate comes last.
    """
    constexprs = dict(tiling, NORM_BEFORE_GATE=norm_before_gate)
    # The launcher turns a stride of 1 into a constant.
    constexprs |= {f'{name}_column': 1 for name in rows}
    types = dict.fromkeys(rows, kind) | dict.fromkeys(parameters, '*fp32')
    types |= {f'{name}_row': 'i32:16' for name in rows} | scalars
    order = 'norm-first' if norm_before_gate else 'gate-first'
    sums = '-sums' if not tiling.get('WITH_INPUTS', True) else ''
    return AOTCase(
        name=f'{kind.strip("*")}-{tiling["GROUP"]}-{order}{sums}',
        kernel=kernel,
        types=types,
        constexprs=constexprs,
    )


def _forward(group_size: int, **special: Any) -> list[AOTCase]:
    return [
        _case(
            _rms_norm_gated_fwd_kernel,
            ('x', 'z', 'y'),
            ('weight', 'bias', 'rstd'),
            dict(rows='i32', eps='fp32'),
            forward_tiling(_ROWS, group_size),
            **special,
        )
    ]


def _backward(group_size: int, **special: Any) -> list[AOTCase]:
    return [
        _case(
            _rms_norm_gated_bwd_kernel,
            ('grad_y', 'x', 'z', 'dx', 'dz'),
            ('weight', 'bias', 'rstd', 'dweight', 'dbias'),
            dict(rows='i32'),
            tiling,
            **special,
        )
        for tiling in backward_tilings(_ROWS, group_size)
    ]


CASES = [
    case
    for direction in (_forward, _backward)
    for special in (
        dict(group_size=384, kind='*bf16', norm_before_gate=False),
        dict(group_size=4096, kind='*fp32', norm_before_gate=True),
        dict(group_size=8192, kind='*bf16', norm_before_gate=False),
    )
    for case in direction(**special)
]
