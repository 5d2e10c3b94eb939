"""How the kernels of the SSD recurrence cut a sequence into chunks."""

_SMALLEST, _LARGEST = 16, 64


def kernel_chunk_size(chunk_size: int) -> int:
    """Frames per chunk that the kernels use when ``chunk_size`` is asked for.

    Matrix products on a GPU need at least 16 rows and a power of two, and
    beyond 64 rows the tiles of a chunk no longer fit into registers; on a CPU
    they would leave the cache, and more is computed inside a chunk. The
    result of the recurrence does not depend on it beyond rounding.

    Args:
        chunk_size (int): Frames per chunk as the user gave it, at least 1.

    Returns:
        int: 16, 32 or 64: the smallest that holds ``chunk_size`` frames, else
        the largest.

    Example:
        >>> from mmssm.ops.ssd_chunk_scan.chunks import kernel_chunk_size
        >>> kernel_chunk_size(1), kernel_chunk_size(32), kernel_chunk_size(256)
        (16, 32, 64)
    """
    size = _SMALLEST
    while size < min(chunk_size, _LARGEST):
        size *= 2
    return size


def num_chunks(length: int, chunk_size: int) -> int:
    """Count the chunks of a sequence, as the kernels cut it.

    Args:
        length (int): Frames of the sequence.
        chunk_size (int): Frames per chunk as the user gave it, at least 1.

    Returns:
        int: Chunks of `kernel_chunk_size` frames; the last may be shorter.

    Example:
        >>> from mmssm.ops.ssd_chunk_scan.chunks import num_chunks
        >>> num_chunks(130, 64)
        3
    """
    return -(-length // kernel_chunk_size(chunk_size))


def kept_numbers(length: int, chunk_size: int, state_numbers: int) -> int:
    """Count what `native` keeps of the states for its backward pass.

    These are the states before every chunk but the first, and two numbers
    more: a traced graph asks whether a size is 0 or 1, and then serves only
    such lengths.

    Args:
        length (int): Frames of the sequence.
        chunk_size (int): Frames per chunk as the user gave it, at least 1.
        state_numbers (int): Numbers of a state of the whole batch.

    Returns:
        int: Size of the one axis of what is kept.

    Example:
        >>> from mmssm.ops.ssd_chunk_scan.chunks import kept_numbers
        >>> kept_numbers(64, 64, 10), kept_numbers(130, 64, 10)
        (2, 22)
    """
    return (num_chunks(length, chunk_size) - 1) * state_numbers + 2
