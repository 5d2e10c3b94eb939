"""The Cayley rotation without its matrix (`torch` backend)."""

import torch
from torch import Tensor

from mmssm.ops.cayley_rotate.reference import cayley_rotate_reference


def cayley_rotate_torch(
    state: Tensor, U: Tensor, V: Tensor, theta: Tensor
) -> Tensor:
    """Rotate by solving a system of size ``2 rank``.

    S = left right^T with left = [U theta, -V theta], right = [V, U], hence
    Z = I + left (I - right^T left / 2)^-1 right^T.
    """
    rank = U.shape[-1]
    if 2 * rank >= U.shape[-2]:
        # The dense system is no larger.
        return cayley_rotate_reference(state, U, V, theta)
    theta = theta.unsqueeze(-2)
    left = torch.cat((U * theta, -V * theta), dim=-1)
    right = torch.cat((V, U), dim=-1).transpose(-1, -2)
    core = torch.eye(2 * rank, dtype=U.dtype, device=U.device)
    core = torch.sub(core, right @ left, alpha=0.5)
    # As in the reference: no exception on NaN, no wait on a GPU.
    coefficients, _ = torch.linalg.solve_ex(core, right)
    return state + (state @ left) @ coefficients
