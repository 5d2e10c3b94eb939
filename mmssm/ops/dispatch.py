"""Choice of the implementation that serves an operator call."""

import torch

BACKENDS = ('reference', 'torch', 'native', 'triton')


def choose_backend(
    op: str,
    backend: str | None,
    device: torch.device,
    available: tuple[str, ...],
) -> str:
    """Decide which implementation of an operator runs.

    This is the only place that decides, and only its arguments count: no
    environment variable and no global switch.

    Args:
        op (str): Name of the operator, for messages.
        backend (str, optional): ``'reference'``, ``'torch'``, ``'native'`` or
            ``'triton'``. None picks the fastest one for ``device``.
        device (torch.device): Where the tensors are.
        available (tuple[str, ...]): Backends that ``op`` implements.

    Returns:
        str: One of ``available``.

    Raises:
        ValueError: If ``backend`` is not the name of a backend.
        RuntimeError: If ``backend`` was asked for but cannot serve ``op``.
    """
    if backend is None:
        return 'torch'
    if backend not in BACKENDS:
        raise ValueError(
            f'`backend` is {backend!r}; expected None or one of {BACKENDS}'
        )
    if backend not in available:
        usable = ' or '.join(repr(name) for name in available)
        raise RuntimeError(
            f'no {backend} kernel for {op} in this version (tensors are on '
            f'{device}); use backend=None, which picks by device, or {usable}'
        )
    return backend
