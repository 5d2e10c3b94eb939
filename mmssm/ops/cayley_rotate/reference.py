"""The definition of the Cayley rotation: a dense solve."""

import torch
from torch import Tensor


def cayley_matrix_reference(U: Tensor, V: Tensor, theta: Tensor) -> Tensor:
    """Form Z = (I - S/2)^-1 (I + S/2); all tensors in the working dtype.

    Args:
        U (Tensor): ``(batch, heads, state, rank)``.
        V (Tensor): ``(batch, heads, state, rank)``.
        theta (Tensor): ``(batch, heads, rank)``.

    Returns:
        Tensor: ``(batch, heads, state, state)``, orthogonal.
    """
    product = (U * theta.unsqueeze(-2)) @ V.transpose(-1, -2)
    S = product - product.transpose(-1, -2)
    identity = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    # solve_ex: a NaN input gives NaN, not an exception, and a GPU need not
    # wait for the check. I - S/2 is never singular, S being skew.
    Z, _ = torch.linalg.solve_ex(identity - S / 2, identity + S / 2)
    return Z


def cayley_rotate_reference(
    state: Tensor, U: Tensor, V: Tensor, theta: Tensor
) -> Tensor:
    """Rotate with the dense matrix; all tensors in the working dtype."""
    return state @ cayley_matrix_reference(U, V, theta)
