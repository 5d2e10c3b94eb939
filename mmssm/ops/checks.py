"""Argument checks shared by the operators."""

from torch import Tensor


def check_floating(**tensors: Tensor) -> None:
    """Raise TypeError for anything that is not a real floating tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f'`{name}` is a {type(tensor).__name__}; expected a Tensor'
            )
        if not tensor.is_floating_point():
            raise TypeError(
                f'`{name}` has dtype {tensor.dtype}; expected a real floating '
                'dtype'
            )


def check_floating_or_none(**tensors: Tensor | None) -> None:
    """Like `check_floating`, for arguments that may be left out."""
    for name, tensor in tensors.items():
        if tensor is not None:
            check_floating(**{name: tensor})


def check_device(**tensors: Tensor | None) -> None:
    """Raise ValueError unless all tensors are where the first one is."""
    (name, first), *others = tensors.items()
    for other, tensor in others:
        if tensor is not None and tensor.device != first.device:
            raise ValueError(
                f'`{other}` is on {tensor.device} and `{name}` on '
                f'{first.device}; expected one device'
            )


def check_count(name: str, value: int) -> None:
    """Raise unless ``value`` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f'`{name}` is {value!r} ({type(value).__name__}); expected an int'
        )
    if value < 1:
        raise ValueError(f'`{name}` is {value}; expected at least 1')


def check_ndim(name: str, tensor: Tensor, axes: str) -> None:
    """Raise ValueError unless ``tensor`` has the axes, e.g. '(batch, dim)'."""
    if tensor.ndim != axes.count(',') + 1:
        raise ValueError(
            f'`{name}` has shape {tuple(tensor.shape)}; expected {axes}'
        )


def check_shape(
    name: str, tensor: Tensor | None, axes: str, expected: tuple[int, ...]
) -> None:
    """Raise ValueError unless ``tensor`` is None or has this shape."""
    if tensor is not None and tuple(tensor.shape) != tuple(expected):
        raise ValueError(
            f'`{name}` has shape {tuple(tensor.shape)}; expected {axes} = '
            f'{tuple(expected)}'
        )
