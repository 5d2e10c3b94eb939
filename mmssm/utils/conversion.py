"""What the converters of published weights share."""

import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor


def rename_weights(
    state_dict: Mapping[str, Tensor],
    rules: Sequence[tuple[str, str]],
    placeholders: Mapping[str, str],
) -> dict[str, Tensor]:
    """Rename weights by templates.

    Args:
        state_dict (Mapping): Weights by name.
        rules (Sequence[tuple[str, str]]): Template of a name and of the new
            name, such as ``('blocks.{i}.{leaf}', 'layers.{i}.{leaf}')``. The
            first rule that fits wins.
        placeholders (Mapping[str, str]): What each ``{...}`` stands for, as a
            regular expression.

    Returns:
        dict: The same tensors under the new names.

    Raises:
        KeyError: If keys match no rule; all of them are named.
    """
    compiled = [
        (_pattern(source, placeholders), target) for source, target in rules
    ]
    renamed, unmatched = {}, []
    for key, value in state_dict.items():
        for pattern, target in compiled:
            match = pattern.fullmatch(key)
            if match:
                renamed[target.format(**match.groupdict())] = value
                break
        else:
            unmatched.append(key)
    if unmatched:
        raise KeyError(
            f'{len(unmatched)} keys match no rule, so this is not a '
            'checkpoint of the expected model: ' + ', '.join(unmatched)
        )
    return renamed


def _pattern(template: str, placeholders: Mapping[str, str]) -> re.Pattern:
    parts = re.split(r'\{(\w+)\}', template)
    return re.compile(
        ''.join(
            f'(?P<{part}>{placeholders[part]})' if n % 2 else re.escape(part)
            for n, part in enumerate(parts)
        )
    )


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a checkpoint's weights without running code from it.

    Args:
        path (str or Path): File with a state dict, bare or under the key
            ``model`` (published) or ``state_dict`` (mmengine).

    Returns:
        dict: The state dict.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no checkpoint or holds no state dict.
    """
    # mmengine.runner imports OpenCV, which models need not have.
    from mmengine.runner.checkpoint import get_torch_safe_globals

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f'no checkpoint at {path}; expected a file saved by PyTorch'
        )
    # mmengine's own checkpoints hold its log buffers besides the weights,
    # those of many training scripts their parsed options.
    harmless = [*get_torch_safe_globals(), Namespace]
    with torch.serialization.safe_globals(harmless):
        try:
            checkpoint = torch.load(
                path, map_location='cpu', weights_only=True
            )
        except OSError:
            raise
        except Exception as error:
            # Bytes that are no pickle make the unpickler raise anything.
            raise ValueError(
                f'{path} cannot be read as a checkpoint of PyTorch '
                f'({type(error).__name__}: {str(error)[:200]}); is it one, '
                'and complete?'
            ) from error
    for key in ('model', 'state_dict'):
        if isinstance(checkpoint, dict) and key in checkpoint:
            checkpoint = checkpoint[key]
    if not isinstance(checkpoint, dict) or not all(
        isinstance(value, Tensor) for value in checkpoint.values()
    ):
        raise ValueError(
            f'{path} holds no state dict; expected a dict of tensors, bare '
            "or under 'model' or 'state_dict'"
        )
    return {key.removeprefix('module.'): v for key, v in checkpoint.items()}


def save_atomically(checkpoint: dict, path: str | Path) -> None:
    """Write a checkpoint so that an interrupted write leaves no file."""
    path = Path(path)
    if path.is_dir() or not path.name:
        raise IsADirectoryError(
            f'{path} is a folder; expected the file to write'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + '.partial')
    torch.save(checkpoint, partial)
    os.replace(partial, path)
