"""Outputs of modules chosen by name, recorded while a model runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Taps = str | Sequence[str] | Mapping[str, str]


def find_modules(model: nn.Module, pattern: str) -> list[str]:
    """Names of the modules that fit a pattern, in the order of the model.

    Args:
        model (nn.Module): Where to look.
        pattern (str): Name of a module; ``*`` stands for any part of a name
            between two dots, ``**`` for any part of it, dots too.

    Returns:
        list[str]: Names as ``named_modules()`` has them.
    """
    parts = re.split(r'(\*\*|\*)', pattern)
    wild = {'*': '[^.]*', '**': '.*'}
    expression = re.compile(
        ''.join(wild.get(part) or re.escape(part) for part in parts)
    )
    return [
        name
        for name, _ in model.named_modules()
        if name and expression.fullmatch(name)
    ]


def find_mixers(model: nn.Module) -> list[str]:
    """Names of all modules whose class is called a mixer (``...Mixer``)."""
    return [
        name
        for name, module in model.named_modules()
        if name and type(module).__name__.endswith('Mixer')
    ]


def pair_taps(
    student: nn.Module, teacher: nn.Module, taps: Taps | None
) -> list[tuple[str, str]]:
    """Pair modules of the student with modules of the teacher.

    Args:
        student (nn.Module): The student.
        teacher (nn.Module): The teacher.
        taps (str, Sequence[str], Mapping[str, str] or None): Patterns (see
            :func:`find_modules`) for both models, or a map from patterns of
            the student to patterns of the teacher. The modules of the two
            are paired in order. None: all mixers.

    Returns:
        list[tuple[str, str]]: Names of the pairs.

    Raises:
        ValueError: If a pattern fits no module, or if the numbers of modules
            differ.
    """
    if taps is None:
        ours, theirs = find_mixers(student), find_mixers(teacher)
        for whose, names in (('student', ours), ('teacher', theirs)):
            if not names:
                raise ValueError(
                    f'the {whose} has no module whose class is called a '
                    'mixer; name the modules to distil with `taps`'
                )
        return _zip('the mixers', ours, theirs)
    if isinstance(taps, str):
        taps = [taps]
    if not isinstance(taps, Mapping):
        taps = {pattern: pattern for pattern in taps}
    if not taps:
        raise ValueError('`taps` is empty; expected at least one pattern')
    return [
        pair
        for ours, theirs in taps.items()
        for pair in _zip(
            f'{ours!r} -> {theirs!r}',
            _find_some(student, 'student', ours),
            _find_some(teacher, 'teacher', theirs),
        )
    ]


def _find_some(model: nn.Module, whose: str, pattern: str) -> list[str]:
    names = find_modules(model, pattern)
    if not names:
        children = ', '.join(name for name, _ in model.named_children())
        raise ValueError(
            f'`taps` has {pattern!r}, which fits no module of the {whose}; '
            f'its modules start with: {children or "(it has none)"}'
        )
    return names


def _zip(
    what: str, ours: list[str], theirs: list[str]
) -> list[tuple[str, str]]:
    if len(ours) != len(theirs):
        raise ValueError(
            f'`taps`: {what} are {len(ours)} modules of the student '
            f'({ours[0]}, ...) and {len(theirs)} of the teacher '
            f'({theirs[0]}, ...); expected as many. Say which belong '
            'together: taps={student name: teacher name, ...}'
        )
    return list(zip(ours, theirs, strict=True))


@contextmanager
def record_outputs(
    model: nn.Module, names: Sequence[str]
) -> Iterator[dict[str, list[Tensor]]]:
    """Record what modules return; the hooks last as long as the context.

    Args:
        model (nn.Module): Where the modules are.
        names (Sequence[str]): Their names.

    Yields:
        dict[str, list[Tensor]]: By name, the output of every call. Of an
        output of several parts the first tensor counts.
    """
    outputs: dict[str, list[Tensor]] = {name: [] for name in names}

    def record(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            outputs[name].append(_first_tensor(output, name))

        return hook

    handles = [
        model.get_submodule(name).register_forward_hook(record(name))
        for name in outputs
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _first_tensor(output: Any, name: str) -> Tensor:
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(
            f'module {name!r} returns {type(output).__name__}; expected a '
            'tensor, or a tuple that starts with one'
        )
    return output
