"""What the custom operators of this package have in common.

An operator with kernels is a pair of ``torch.library`` operators,
``mmssm::<op>`` and ``mmssm::<op>_backward``, so that ``torch.compile`` and
``torch.export`` take it as one opaque step.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

from torch import Tensor
from torch.library import CustomOpDef


def present(tensor: Tensor | None, like: Tensor) -> Tensor:
    """Stand an empty tensor in for None, which an operator cannot return."""
    return like.new_empty(0) if tensor is None else tensor


def wanted(
    needs: Sequence[bool], inputs: Sequence[Any], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Keep the gradients of the inputs that are there and need one.

    Args:
        needs (Sequence[bool]): ``ctx.needs_input_grad``, of all arguments.
        inputs (Sequence): The leading arguments, those with a gradient.
        gradients (Sequence[Tensor]): One for each of ``inputs``; empty where
            the input is None.

    Returns:
        tuple: One entry for every argument.
    """
    kept = [
        gradient if need and tensor is not None else None
        for need, tensor, gradient in zip(
            needs[: len(inputs)], inputs, gradients, strict=True
        )
    ]
    return (*kept, *[None] * (len(needs) - len(inputs)))


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
