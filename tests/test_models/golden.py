"""Reading the golden files of published models."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / 'tests/data/golden'
RELATIVE_TOLERANCE = 2e-5  # of max|out| per key; float32 noise is 1e-6..6e-6


class Golden:
    """One golden file: ``sd``, ``inputs``, ``out`` and ``config``.

    Gradients are in ``out`` under ``grad/<name>``.
    """

    def __init__(self, name: str, folder: str = 'surgical') -> None:
        with np.load(GOLDEN / folder / f'{name}.npz') as archive:
            arrays = {key: archive[key] for key in archive.files}
        self.meta = json.loads(str(arrays.pop('meta')))
        self.config = self.meta['config']
        tensors = {k: torch.from_numpy(v) for k, v in arrays.items()}
        self.sd = _under('sd/', tensors)
        self.inputs = _under('in/', tensors)
        self.out = _under('out/', tensors)
        gradients = _under('grad/', tensors).items()
        self.out.update({f'grad/{key}': value for key, value in gradients})

    def check(self, key: str, actual: Tensor) -> None:
        """Compare with ``out/<key>``, relative to its largest value."""
        expected = self.out[key]
        assert actual.shape == expected.shape, key
        scale = expected.abs().max().clamp(min=1e-30)
        error = ((actual - expected).abs().max() / scale).item()
        assert error <= RELATIVE_TOLERANCE, f'{key}: {error:.2e}'


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value
        for key, value in tensors.items()
        if key.startswith(prefix)
    }


def load_converter(name: str = 'surgical_mamba_to_mmssm') -> ModuleType:
    """Import a converter script."""
    path = ROOT / f'tools/model_converters/{name}.py'
    spec = importlib.util.spec_from_file_location('converter', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def converted(
    sd: dict[str, Tensor], published_prefix: str, our_prefix: str
) -> dict[str, Tensor]:
    """Rename the weights of a part of the model."""
    full = {published_prefix + key: value for key, value in sd.items()}
    renamed = load_converter().convert(full)
    assert all(key.startswith(our_prefix) for key in renamed)
    return {k.removeprefix(our_prefix): v for k, v in renamed.items()}


def our_name(key: str, published_prefix: str, our_prefix: str) -> str:
    """Our name of one published parameter."""
    (name,) = converted({key: torch.empty(0)}, published_prefix, our_prefix)
    return name
