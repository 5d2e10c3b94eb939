"""One frame of the SSD recurrence on the CPU: calls of ssd_step.c."""

import ctypes

import torch
from torch import Tensor

from mmssm.kernels.cpu.arguments import (
    TensorArgument,
    in_dtype,
    tensor_argument,
)
from mmssm.kernels.cpu.library import function
from mmssm.ops.precision import working_dtype


class ForwardArguments(ctypes.Structure):
    """Mirror of ``ssd_step_fwd_args`` in ssd_step.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ('batch', 'heads', 'headdim')),
        *((name, ctypes.c_int64) for name in ('state_size', 'groups')),
        *((name, ctypes.c_int64) for name in ('dt_softplus', 'threads')),
        *((name, TensorArgument) for name in ('state', 'x', 'dt', 'A')),
        *((name, TensorArgument) for name in ('B', 'C', 'D', 'z', 'dt_bias')),
        *((name, TensorArgument) for name in ('y', 'new_state')),
    ]


def ssd_step_fwd(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    isa: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance by one frame, with skip and gate; there is no backward pass.

    Args:
        state (Tensor): State so far, ``(batch, heads, headdim, state)``.
        x (Tensor): Input, shape ``(batch, heads, headdim)``.
        dt (Tensor): Step size before bias and softplus, ``(batch, heads)``.
        A (Tensor): Decay rate, shape ``(heads,)``.
        B (Tensor): Input matrix, shape ``(batch, groups, state)``.
        C (Tensor): Output matrix, like ``B``.
        D (Tensor, optional): Skip, ``(heads,)`` or ``(heads, headdim)``.
        z (Tensor, optional): Gate, like ``x``.
        dt_bias (Tensor, optional): Shape ``(heads,)``.
        dt_softplus (bool): Whether softplus is applied to the step size.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor, Tensor]: Output like ``x``, in its dtype, and the new
        state in the working dtype.
    """
    dtype = working_dtype(x.dtype)
    y = torch.empty_like(x, dtype=dtype)
    new_state = torch.empty_like(
        state, dtype=dtype, memory_format=torch.contiguous_format
    )
    # Casts live in this list until the kernel has returned.
    inputs = [
        _dense_rows(state, dtype),
        *(in_dtype(t, dtype) for t in (x, dt, A)),
        *(_dense_rows(t, dtype) for t in (B, C)),
        *(in_dtype(t, dtype) for t in (D, z, dt_bias)),
    ]
    kernel = function('ssd_step_fwd', dtype, ForwardArguments, isa)
    kernel(
        ForwardArguments(
            *state.shape,
            *(B.shape[1], dt_softplus, torch.get_num_threads()),
            *map(tensor_argument, (*inputs, y, new_state)),
        )
    )
    return in_dtype(y, x.dtype), new_state


def _dense_rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast a tensor, and lay the elements of its last axis side by side."""
    tensor = in_dtype(tensor, dtype)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
