"""Starting a student from the weights that it shares with its teacher."""

from typing import NamedTuple

import torch
from torch import nn

# Rows of these projections are the parameters of the operator: those of
# another operator mean something else, even where their number is the same.
OPERATOR_PROJECTION = '.x_proj.'


class SharedWeights(NamedTuple):
    """What was copied.

    Attributes:
        copied (list[str]): Names of the tensors.
        total (int): Number of tensors of the student.
    """

    copied: list[str]
    total: int


@torch.no_grad()
def copy_shared_weights(
    student: nn.Module, teacher: nn.Module
) -> SharedWeights:
    """Copy the tensors of the same name and shape from the teacher.

    That is everything but the operator, where student and teacher differ in
    the operator alone.

    Args:
        student (nn.Module): Changed in place.
        teacher (nn.Module): Where the tensors are from.

    Returns:
        SharedWeights: What was copied.

    Raises:
        ValueError: If student and teacher share no tensor.
    """
    target, source = student.state_dict(), teacher.state_dict()
    shared = [
        name
        for name, value in target.items()
        if name in source
        and source[name].shape == value.shape
        and _has_same_meaning(name, student, teacher)
    ]
    if not shared:
        raise ValueError(
            'student and teacher share no tensor of the same name and '
            f'shape; the student has {next(iter(target), "none")}, ..., the '
            f'teacher {next(iter(source), "none")}, ...'
        )
    for name in shared:
        target[name].copy_(source[name])
    return SharedWeights(shared, len(target))


def _has_same_meaning(
    name: str, student: nn.Module, teacher: nn.Module
) -> bool:
    owner, projection, _ = name.rpartition(OPERATOR_PROJECTION)
    if not projection:
        return True
    ours, theirs = (m.get_submodule(owner) for m in (student, teacher))
    return type(ours) is type(theirs)
