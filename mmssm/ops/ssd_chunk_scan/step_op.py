"""One frame of the SSD recurrence as a custom operator, without gradients.

Streaming needs none, and one fused pass over the state is what a frame costs.
"""

import torch
from torch import Tensor

from mmssm.ops.dispatch import load_backend
from mmssm.ops.precision import working_dtype


@torch.library.custom_op('mmssm::ssd_step', mutates_args=())
def ssd_step_op(
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
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Advance on a backend; see `ssd_step_fwd` of the `native` backend."""
    kernels = load_backend('ssd_step', backend)
    return kernels.ssd_step_fwd(
        state, x, dt, A, B, C, D, z, dt_bias, dt_softplus
    )


@ssd_step_op.register_fake
def _(
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
    backend: str,
) -> tuple[Tensor, Tensor]:
    new_state = state.new_empty(state.shape, dtype=working_dtype(x.dtype))
    return torch.empty_like(x), new_state
