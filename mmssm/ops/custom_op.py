"""What the custom operators of this package have in common.

An operator with kernels is a pair of ``torch.library`` operators,
``mmssm::<op>`` and ``mmssm::<op>_backward``, so that ``torch.compile`` and
``torch.export`` take it as one opaque step.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.library import CustomOpDef


def present(tensor: Tensor | None, like: Tensor) -> Tensor:
    """Stand an empty tensor in for None, which an operator cannot return."""
    return like.new_empty(0) if tensor is None else tensor


def like_inputs(
    gradients: Sequence[Tensor | None],
    inputs: Sequence[Tensor | None],
    like: Tensor,
) -> tuple[Tensor, ...]:
    """Lay gradients out as ``torch.empty_like`` of their inputs.

    The fake operators promise that layout; backends may return any.

    Args:
        gradients (Sequence[Tensor | None]): Of the inputs.
        inputs (Sequence[Tensor | None]): Tensors with their layouts.
        like (Tensor): Tells the dtype and device of the empty tensors that
            stand in for None.

    Returns:
        tuple: One tensor for every input.
    """
    return tuple(
        like.new_empty(0) if tensor is None else _laid_out(gradient, tensor)
        for gradient, tensor in zip(gradients, inputs, strict=True)
    )


def _laid_out(gradient: Tensor, tensor: Tensor) -> Tensor:
    whole = gradient.storage_offset() == 0
    if whole and gradient.is_contiguous() and tensor.is_contiguous():
        return gradient
    promised = torch.empty_like(tensor, dtype=gradient.dtype)
    if whole and gradient.stride() == promised.stride():
        return gradient
    return promised.copy_(gradient)


def or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Return a gradient, zeros where the output was not used.

    Operators ask autograd not to make zeros for unused outputs
    (``ctx.set_materialize_grads(False)``): most of what they return for the
    backward pass is large and has no gradient.
    """
    return torch.zeros_like(like) if gradient is None else gradient


def wanted(
    needs: Sequence[bool], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Keep the gradients that are needed.

    Args:
        needs (Sequence[bool]): ``ctx.needs_input_grad``, of all arguments;
            False for those that are None.
        gradients (Sequence[Tensor]): Of the leading arguments; the others
            are no tensors.

    Returns:
        tuple: One entry for every argument.
    """
    others = [None] * (len(needs) - len(gradients))
    kept = [
        gradient if need else None
        for need, gradient in zip(needs, gradients, strict=False)
    ]
    return (*kept, *others)


def forbid_second_derivative(op: CustomOpDef, name: str) -> None:
    """Make the backward operator ``op`` of ``name`` say that it is the last.

    Args:
        op (CustomOpDef): The backward operator.
        name (str): Public name of the operator it belongs to.
    """

    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        raise RuntimeError(
            f'mmssm.ops.{name} has no second derivative on this backend; use '
            "backend='reference', which has, slowly"
        )

    op.register_autograd(backward)
