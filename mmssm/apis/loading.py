"""Build what a streaming session needs from a config and a checkpoint."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn

from mmssm.engine.launch import check_exists, load_config
from mmssm.registry import DATASETS, MODELS
from mmssm.utils import require

_NUM_SHOWN = 5


class StreamingParts(NamedTuple):
    """What a config and a checkpoint say about a stream.

    Attributes:
        model (nn.Module): The recognizer, with the weights, in evaluation
            mode.
        pipeline (list[dict]): Transforms of the test dataset.
        classes (list[str] or None): Names of the phases.
        fps (float): Frame rate of the model.
        palette (list or None): RGB colours of the phases.
    """

    model: nn.Module
    pipeline: list[dict]
    classes: list[str] | None
    fps: float
    palette: list | None


def load_streaming_parts(
    config: str | Path | Config,
    checkpoint: str | Path,
    device: str | torch.device = 'cpu',
) -> StreamingParts:
    """Build the model of a config with the weights of a checkpoint.

    Args:
        config (str, Path or Config): The config; a name is looked up like
            those of the tools (:func:`mmssm.engine.launch.find_config`).
        checkpoint (str or Path): Weights saved with that config.
        device (str or torch.device): Where to run. Default: 'cpu'.

    Returns:
        StreamingParts: Model, transforms, names and frame rate.

    Raises:
        FileNotFoundError: If a file is missing.
        RuntimeError: If the device is not there.
        ValueError: If config and checkpoint do not belong together.
    """
    device = torch.device(device)
    if device.type == 'cuda' and not torch.cuda.is_available():
        raise RuntimeError(
            f'`device` is {device}, but torch sees no GPU; use '
            "device='cpu', or install a CUDA build of torch"
        )
    if not isinstance(config, Config):
        config = load_config(str(config))
    if 'model' not in config:
        raise ValueError(
            f'config {config.filename} has no `model`; expected the config '
            'of a phase recognizer'
        )
    init_default_scope(config.get('default_scope', 'mmssm'))
    dataset = find_test_dataset(config)
    saved = load_checkpoint_file(checkpoint)
    model = MODELS.build(without_pretrained(config.model))
    load_exactly(model, saved, str(checkpoint))
    meta = merge_metainfo(dataset, saved, str(checkpoint))
    classes = meta.get('classes')
    return StreamingParts(
        model=model.to(device).eval(),
        pipeline=list(dataset.get('pipeline', [])),
        classes=None if classes is None else list(classes),
        fps=float(meta.get('fps', 1)),
        palette=meta.get('palette'),
    )


def find_test_dataset(config: Config) -> Mapping[str, Any]:
    """Find the config of the dataset that the model is tested on.

    Args:
        config (Config): The config.

    Returns:
        Mapping: Config of the dataset, the inner one if it is wrapped.

    Raises:
        ValueError: If there is none.
    """
    for name in ('test_dataloader', 'val_dataloader'):
        dataset = (config.get(name) or {}).get('dataset')
        while dataset is not None and 'dataset' in dataset:
            dataset = dataset['dataset']
        if dataset is not None:
            return dataset
    raise ValueError(
        f'config {config.filename} has neither `test_dataloader` nor '
        '`val_dataloader`, so the transforms of its frames are not known. '
        'Build the model yourself and give '
        'StreamingSession(model, pipeline=...)'
    )


def without_pretrained(model: Any) -> Any:
    """Copy a model config without weights that would be fetched to build it.

    The checkpoint replaces all of them, and a stream must not need a network.

    Args:
        model (Any): Config of the model, or a part of it.

    Returns:
        Any: A copy without `pretrained` and without `init_cfg` of type
        'Pretrained'.
    """
    if isinstance(model, Mapping):
        result = {}
        for key, value in model.items():
            if key == 'pretrained':
                value = False if isinstance(value, bool) else None
            elif (
                key == 'init_cfg'
                and isinstance(value, Mapping)
                and value.get('type') == 'Pretrained'
            ):
                value = None
            result[key] = without_pretrained(value)
        return result
    if isinstance(model, (list, tuple)):
        return type(model)(without_pretrained(value) for value in model)
    return copy.deepcopy(model)


def load_checkpoint_file(checkpoint: str | Path) -> dict:
    """Read a checkpoint with mmengine's loader, on the CPU.

    Args:
        checkpoint (str or Path): A file, or a URL mmengine knows.

    Returns:
        dict: The checkpoint, with its weights under 'state_dict'.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no checkpoint.
    """
    check_exists(str(checkpoint))
    # mmengine.runner imports OpenCV, which a base install lacks.
    require('cv2', extra='video', used_by="mmengine's checkpoint loader")
    from mmengine.runner import CheckpointLoader

    try:
        saved = CheckpointLoader.load_checkpoint(str(checkpoint), 'cpu')
    except OSError:
        # Not readable, or not reachable: these say so themselves.
        raise
    except Exception as error:
        # Bytes that are no pickle make the unpickler raise anything.
        raise ValueError(
            f'{checkpoint} cannot be read as a checkpoint of PyTorch '
            f'({type(error).__name__}: {str(error)[:200]}); is it one, and '
            'complete?'
        ) from error
    if isinstance(saved, Mapping) and 'state_dict' not in saved:
        tensors = all(isinstance(v, torch.Tensor) for v in saved.values())
        if saved and tensors:
            return {'state_dict': saved}
    if not isinstance(saved, Mapping) or 'state_dict' not in saved:
        keys = sorted(map(str, saved)) if isinstance(saved, Mapping) else []
        raise ValueError(
            f'{checkpoint} holds no `state_dict` (it holds '
            f'{", ".join(keys[:_NUM_SHOWN]) or type(saved).__name__}). If '
            "these are the authors' weights, convert them with "
            'tools/model_converters/surgical_mamba_to_mmssm.py first'
        )
    return dict(saved)


def load_exactly(model: nn.Module, saved: Mapping, source: str) -> None:
    """Load weights that fit a model entirely.

    Args:
        model (nn.Module): The model.
        saved (Mapping): A checkpoint with its weights under 'state_dict'.
        source (str): Name of the checkpoint, for messages.

    Raises:
        ValueError: If keys are missing, unexpected, or of another shape.
    """
    weights = {
        key.removeprefix('module.'): value
        for key, value in saved['state_dict'].items()
    }
    expected = model.state_dict()
    problems = []
    for title, keys in (
        ('missing in the checkpoint', expected.keys() - weights.keys()),
        ('not in the model', weights.keys() - expected.keys()),
        (
            'of another shape',
            {
                f'{key} {tuple(weights[key].shape)}, expected '
                f'{tuple(expected[key].shape)}'
                for key in expected.keys() & weights.keys()
                if weights[key].shape != expected[key].shape
            },
        ),
    ):
        if keys:
            shown = '; '.join(sorted(keys)[:_NUM_SHOWN])
            more = ' ...' if len(keys) > _NUM_SHOWN else ''
            problems.append(f'{len(keys)} keys {title}: {shown}{more}')
    if problems:
        raise ValueError(
            f'checkpoint {source} does not fit the config:\n  '
            + '\n  '.join(problems)
            + '\nUse the config that the checkpoint was trained with; it is '
            'saved in the work directory of that run'
        )
    model.load_state_dict(weights)


def merge_metainfo(
    dataset: Mapping[str, Any], saved: Mapping, source: str
) -> dict:
    """Take the names of the phases, their colours and the frame rate.

    Args:
        dataset (Mapping): Config of the test dataset.
        saved (Mapping): The checkpoint.
        source (str): Name of the checkpoint, for messages.

    Returns:
        dict: 'classes' and 'palette' of the checkpoint, otherwise of the
        dataset; 'fps' of the dataset, otherwise of the checkpoint. What
        nobody says is left out.

    Raises:
        ValueError: If both name the phases, but not the same.
    """
    trained = dict((saved.get('meta') or {}).get('dataset_meta') or {})
    dataset_class = (
        DATASETS.get(dataset['type']) if 'type' in dataset else None
    )
    configured = {
        **(getattr(dataset_class, 'METAINFO', None) or {}),
        **(dataset.get('metainfo') or {}),
    }
    if 'fps' in dataset:
        configured['fps'] = dataset['fps']
    old, new = trained.get('classes'), configured.get('classes')
    if old is not None and new is not None and list(old) != list(new):
        raise ValueError(
            f'checkpoint {source} was trained on the phases '
            f'{", ".join(old)}; the dataset of the config has '
            f'{", ".join(new)}. Expected the same names in the same order'
        )
    merged = {**configured, **trained}
    if 'fps' in configured:
        merged['fps'] = configured['fps']
    return merged
