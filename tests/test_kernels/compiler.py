"""Whether Triton can compile here."""

import importlib.util


def compiler_obstacle() -> str | None:
    """Say why Triton cannot compile in this process.

    Returns:
        str, optional: The reason; None if it can.
    """
    if importlib.util.find_spec('triton') is None:
        return 'Triton is not installed'
    import triton

    if triton.knobs.runtime.interpret:
        return (
            'kernels of the interpreter cannot be compiled; unset '
            'TRITON_INTERPRET'
        )
    return None
