"""How the selective scan is divided among programs."""

import triton

from mmssm.ops.selective_scan.checkpoints import CHECKPOINT_EVERY

# With fewer programs than this a large GPU is not busy, and narrower blocks
# of channels pay.
_ENOUGH_PROGRAMS = 1024
_NARROWEST_BLOCK = 8


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
    warps = min(8, max(1, padded // 16))
    widest = min(32, 256 * warps // padded)
    return _tiling(batch, dim, groups, state, warps, widest)


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
    warps = 1 if padded <= 16 else min(8, padded // 8)
    tile = 256 if warps == 1 else 64
    widest = min(16, 8 * padded, tile * warps // padded)
    return _tiling(batch, dim, groups, state, warps, widest)


def _tiling(
    batch: int, dim: int, groups: int, state: int, warps: int, widest: int
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
        num_warps=warps,
    )
