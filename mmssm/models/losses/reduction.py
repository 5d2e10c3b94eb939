"""Means over valid frames, shared by the losses."""

from typing import Literal

from torch import Tensor

Reduction = Literal['mean', 'sequence']


def masked_mean(values: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Average over valid frames.

    An empty selection gives zero, connected to the graph, so that a clip
    without a valid frame adds neither a loss nor a NaN.

    Args:
        values (Tensor): ``(batch, length)``.
        mask (Tensor): Bool ``(batch, length)``, True on frames that count.
        reduction (str): 'mean': over all frames of all sequences;
            'sequence': over the frames of each sequence.

    Returns:
        Tensor: Scalar for 'mean', ``(batch,)`` for 'sequence'.

    Raises:
        ValueError: If ``reduction`` is neither.
    """
    if reduction not in ('mean', 'sequence'):
        raise ValueError(
            f"`reduction` is {reduction!r}; expected 'mean' or 'sequence'"
        )
    dims = (0, 1) if reduction == 'mean' else (1,)
    total = values.masked_fill(~mask, 0).sum(dims)
    return total / mask.sum(dims).clamp(min=1)
