"""Where the forward pass of the modal scan keeps the state."""

CHECKPOINT_EVERY = 64


def chunks_of(length: int, reverse: bool) -> list[range]:
    """Tokens of every chunk, in the order they are processed.

    Args:
        length (int): Number of tokens.
        reverse (bool): Whether the last token is processed first.

    Returns:
        list[range]: One range per chunk of `CHECKPOINT_EVERY` tokens.
    """
    steps = range(length)
    if reverse:
        steps = steps[::-1]
    starts = range(0, length, CHECKPOINT_EVERY)
    return [steps[start : start + CHECKPOINT_EVERY] for start in starts]
