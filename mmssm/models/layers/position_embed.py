"""Learned absolute positions for grids of any size."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GridPositionEmbed(nn.Module):
    """Position embedding of a grid of patches, with a class token or not.

    The class token stands in the middle of the sequence, before patch
    ``patches // 2``, and has the row of the embedding at that place. A grid
    of another size gets interpolated rows (bicubic); the row of the class
    token is not part of the grid.

    Args:
        grid (tuple[int, int]): Rows and columns that the parameter is for.
        embed_dims (int): Width of the tokens.
        with_cls_token (bool): Whether the parameter has a row for it.
    """

    def __init__(
        self, grid: tuple[int, int], embed_dims: int, with_cls_token: bool
    ) -> None:
        super().__init__()
        self.grid, self.with_cls_token = grid, with_cls_token
        num_rows = grid[0] * grid[1] + with_cls_token
        self.weight = nn.Parameter(torch.zeros(1, num_rows, embed_dims))

    def forward(self, grid: tuple[int, int]) -> Tensor:
        """Embedding ``(1, tokens, embed_dims)`` of a grid."""
        if tuple(grid) == tuple(self.grid):
            return self.weight
        return resize_position_embed(
            self.weight, self.grid, grid, self.with_cls_token
        )


def cls_token_index(grid: tuple[int, int]) -> int:
    """Place of the class token among the tokens of a grid."""
    return grid[0] * grid[1] // 2


def resize_position_embed(
    weight: Tensor,
    source: tuple[int, int],
    target: tuple[int, int],
    with_cls_token: bool,
) -> Tensor:
    """Interpolate the rows of a grid for a grid of another size.

    Args:
        weight (Tensor): ``(1, tokens, embed_dims)``.
        source (tuple[int, int]): Grid of ``weight``.
        target (tuple[int, int]): Grid of the result.
        with_cls_token (bool): Whether both have the row of a class token.

    Returns:
        Tensor: ``(1, tokens of the target, embed_dims)``.
    """
    cls_row = None
    if with_cls_token:
        index = cls_token_index(source)
        cls_row = weight[:, index : index + 1]
        weight = torch.cat((weight[:, :index], weight[:, index + 1 :]), dim=1)
    image = weight.unflatten(1, source).permute(0, 3, 1, 2)
    # The cubic kernel needs at least float32.
    dtype = torch.promote_types(image.dtype, torch.float32)
    image = F.interpolate(
        image.to(dtype), size=target, mode='bicubic', align_corners=False
    )
    rows = image.to(weight.dtype).flatten(2).mT
    if cls_row is None:
        return rows
    index = cls_token_index(target)
    return torch.cat((rows[:, :index], cls_row, rows[:, index:]), dim=1)
