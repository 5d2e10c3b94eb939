"""Specialisations of the selective scan that have to compile."""

from collections.abc import Callable
from typing import Any

from mmssm.kernels.triton.selective_scan_bwd import _selective_scan_bwd_kernel
from mmssm.kernels.triton.selective_scan_fwd import _selective_scan_fwd_kernel
from mmssm.kernels.triton.selective_scan_tiling import (
    backward_tiling,
    forward_tiling,
)
from tests.test_kernels.aot import AOTCase

_OPTIONAL = (
    'D',
    'z',
    'delta_bias',
    'initial_state',
    'dD',
    'dz',
    'ddelta_bias',
)
_FORWARD = dict(
    kernel=_selective_scan_fwd_kernel,
    sequences=('u', 'delta', 'z', 'y'),
    parameters=(
        *('A', 'D', 'delta_bias', 'initial_state', 'last_state'),
        'checkpoints',
    ),
    tiling=forward_tiling,
)
_BACKWARD = dict(
    kernel=_selective_scan_bwd_kernel,
    sequences=('grad_y', 'u', 'delta', 'z', 'du', 'ddelta', 'dz'),
    parameters=(
        *('grad_last_state', 'A', 'D', 'delta_bias', 'checkpoints'),
        *('scratch', 'dA', 'dB', 'dC', 'dD', 'ddelta_bias', 'dinitial_state'),
    ),
    tiling=backward_tiling,
)


def _case(
    kernel: Any,
    sequences: tuple[str, ...],
    parameters: tuple[str, ...],
    tiling: Callable,
    kind: str,
    state: int,
    channels_last: bool = False,
    bare: bool = False,
) -> AOTCase:
    """Describe one specialisation.

    Args:
        kernel (Any): The kernel.
        sequences (tuple[str, ...]): Tensors ``(batch, dim, length)``.
        parameters (tuple[str, ...]): Other tensors, of float32.
        tiling (Callable): Chooses the shape of the programs.
        kind (str): Type of the sequences, ``B`` and ``C``.
        state (int): States per channel.
        channels_last (bool): Which stride is 1, and so a constant.
        bare (bool): Whether all optional tensors are absent.
    """
    types = dict.fromkeys((*sequences, 'B', 'C'), kind)
    types |= dict.fromkeys(parameters, '*fp32')
    types |= dict.fromkeys(('groups', 'dim_per_group', 'length'), 'i32')
    for name in sequences:
        types |= {f'{name}_{axis}': 'i32' for axis in ('batch', 'dim', 'time')}
    for name in ('B', 'C'):
        types |= {
            f'{name}_{axis}': 'i32'
            for axis in ('batch', 'group', 'state', 'time')
        }
    unit = 'dim' if channels_last else 'time'
    constexprs = {f'{name}_{unit}': 1 for name in sequences}
    unit = 'state' if channels_last else 'time'
    constexprs |= {f'{name}_{unit}': 1 for name in ('B', 'C')}
    if bare:
        constexprs |= {name: None for name in _OPTIONAL if name in types}
    # As many channels as make the widest blocks.
    options = tiling(64, 1536, 1, state)[1]
    constexprs |= dict(SOFTPLUS=not bare, REVERSE=bare, **options)
    return AOTCase(
        name=f'{kind.strip("*")}-{state}-states{"-bare" if bare else ""}',
        kernel=kernel,
        types={k: v for k, v in types.items() if k not in constexprs},
        constexprs=constexprs,
    )


CASES = [
    _case(**direction, **special)
    for direction in (_FORWARD, _BACKWARD)
    for special in (
        dict(kind='*bf16', state=16),
        dict(kind='*fp32', state=4, channels_last=True, bare=True),
        dict(kind='*bf16', state=1, channels_last=True),
        dict(kind='*fp32', state=128),
    )
]
