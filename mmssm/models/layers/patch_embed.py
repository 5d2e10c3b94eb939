"""Image to tokens."""

import torch.nn.functional as F
from torch import Tensor, nn


class PatchEmbed(nn.Module):
    """Project the patches of an image, which may overlap.

    An image whose size does not fit is padded with zeros on the right and at
    the bottom, so that every pixel is in a patch.

    Args:
        in_channels (int): Channels of the image.
        embed_dims (int): Width of the tokens.
        patch_size (int): Side of a patch.
        stride (int): Step between patches.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, patch_size: int, stride: int
    ) -> None:
        super().__init__()
        self.patch_size, self.stride = patch_size, stride
        self.proj = nn.Conv2d(in_channels, embed_dims, patch_size, stride)

    def grid_size(self, height: int, width: int) -> tuple[int, int]:
        """Patches per column and per row of an image of this size."""
        return tuple(
            1 + -(-max(side - self.patch_size, 0) // self.stride)
            for side in (height, width)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Map ``(batch, in_channels, height, width)`` to tokens.

        Returns:
            tuple: Tokens ``(batch, patches, embed_dims)`` in row-major order,
            and the grid (rows, columns).
        """
        grid = self.grid_size(*x.shape[-2:])
        bottom, right = (
            (count - 1) * self.stride + self.patch_size - side
            for count, side in zip(grid, x.shape[-2:], strict=True)
        )
        if bottom > 0 or right > 0:
            x = F.pad(x, (0, right, 0, bottom))
        return self.proj(x).flatten(2).mT, grid
