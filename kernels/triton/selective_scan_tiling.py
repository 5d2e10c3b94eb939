"""How the selective scan is divided among programs."""

from typing import Any

import triton

from mmssm.ops.selective_scan.checkpoints import CHECKPOINT_EVERY

# With fewer programs than this a large GPU is not busy, and narrower blocks
# of channels pay.
_ENOUGH_PROGRAMS = 1024
_NARROWEST_BLOCK = 8
# With fewer states a second warp would have next to nothing to do.
_WIDE_STATE = 16


def forward_tiling(
    batch: int, dim: int, groups: int, state: int
) -> tuple[int, dict[str, int]]:
    """Choose the shape of the programs of the forward kernel.

    Args:
        batch (int): Entries of the batch.
        dim (int): Channels of all groups.
        groups (int): Groups of channels.
        state (int): States per channel.

    Returns:
        tuple[int, dict[str, int]]: Channels per program, and the keywords
        that the kernel needs for them.
    """
    padded = triton.next_power_of_2(state)
    widest = min(32, 256 * _forward_warps(padded) // padded)
    return _tiling(batch, dim, groups, state, widest)


def backward_tiling(
    batch: int, dim: int, groups: int, state: int
) -> tuple[int, dict[str, int]]:
    """Choose the shape of the programs of the backward kernel.

    It holds the states of four tokens at once, and where several warps share
    a channel also what they exchange. Blocks are as wide as registers allow;
    for a single state the compiler would rather spill than fill them.

    Args:
        batch (int): Entries of the batch.
        dim (int): Channels of all groups.
        groups (int): Groups of channels.
        state (int): States per channel.

    Returns:
        tuple[int, dict[str, int]]: Channels per program, and the keywords
        that the kernel needs for them.
    """
    padded = triton.next_power_of_2(state)
    warps = _backward_warps(padded)
    tile = 256 if warps == 1 else 64
    widest = min(16, 8 * padded, tile * warps // padded)
    return _tiling(batch, dim, groups, state, widest)


def fits_forward(config: triton.Config, N: int, **_: Any) -> bool:
    """Whether the forward kernel may use the number of warps of a config."""
    fewest = _forward_warps(N)
    return config.num_warps == fewest or (
        N >= _WIDE_STATE and config.num_warps == 2 * fewest
    )


def fits_backward(config: triton.Config, N: int, **_: Any) -> bool:
    """Whether the backward kernel may use the number of warps of a config.

    It spills with more than 8, however small the tile of a warp.
    """
    fewest = _backward_warps(N)
    return config.num_warps == fewest or (
        N >= _WIDE_STATE and config.num_warps == min(8, 2 * fewest)
    )


def _forward_warps(padded: int) -> int:
    """As few warps as have registers for the widest block."""
    return min(8, max(1, padded // 16))


def _backward_warps(padded: int) -> int:
    """As few warps as have registers for the widest block."""
    return 1 if padded <= 16 else min(8, padded // 8)


def _tiling(
    batch: int, dim: int, groups: int, state: int, widest: int
) -> tuple[int, dict[str, int]]:
    block = widest
    while block > _NARROWEST_BLOCK and (
        batch * groups * triton.cdiv(dim // groups, block) < _ENOUGH_PROGRAMS
    ):
        block //= 2
    return block, dict(
        STATE=state,
        N=triton.next_power_of_2(state),
        BLOCK_D=block,
        CHUNK=CHECKPOINT_EVERY,
    )
