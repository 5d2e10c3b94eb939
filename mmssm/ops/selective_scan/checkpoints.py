"""Where the forward pass of the selective scan keeps the state."""

# The backward pass recomputes the states between two checkpoints: with 64
# tokens, those of one chunk fit the second-level cache, and what is kept for
# it is a small part of what the states of all tokens would take.
CHECKPOINT_EVERY = 64


def num_checkpoints(length: int) -> int:
    """Number of chunks of `CHECKPOINT_EVERY` tokens, the last one partial.

    Args:
        length (int): Number of tokens.

    Returns:
        int: Number of checkpoints, one at the start of each chunk.
    """
    return -(-length // CHECKPOINT_EVERY)
