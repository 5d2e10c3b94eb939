"""What the runner tools share: arguments, configs, checkpoints.

``tools/train.py`` and ``tools/test.py`` hold no logic beyond their flags.
Every function works from any directory and for configs of mmssm, mmpretrain,
mmseg and mmdet.
"""

import argparse
import inspect
import logging
import os
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from mmengine.config import Config, DictAction
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.device import is_cuda_available
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.utils import get_installed_path, is_installed
from torch import nn

import mmssm
from mmssm.compat.distributed import LAUNCHERS

if TYPE_CHECKING:
    from mmengine.runner import Runner

# Read from a config without being arguments of mmengine's Runner.
OTHER_SETTINGS = ('find_unused_parameters', 'runner_type')


class _OptionsAction(DictAction):
    """mmengine's action with errors of argparse instead of tracebacks."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Sequence[str],
        option_string: str | None = None,
    ) -> None:
        for pair in values:
            if not pair.partition('=')[0] or '=' not in pair:
                raise argparse.ArgumentError(
                    self, f'{pair!r} is not of the form KEY=VALUE'
                )
        try:
            super().__call__(parser, namespace, values, option_string)
        except AssertionError as error:  # brackets that do not match
            raise argparse.ArgumentError(self, str(error)) from error


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config and the options that change it.

    Args:
        parser (argparse.ArgumentParser): Parser to extend.
    """
    parser.add_argument(
        'config',
        help='config file: a path, a path inside the installed package '
        '(configs/...), or package::path for one of an installed library',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_OptionsAction,
        metavar='KEY=VALUE',
        help='settings to override, for example optim_wrapper.optimizer.lr='
        '0.01; lists as key="[a,b]" or key=a,b, without white space',
    )


def add_runner_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that training and testing share.

    Args:
        parser (argparse.ArgumentParser): Parser to extend.
    """
    parser.add_argument(
        '--work-dir',
        help='directory of logs and checkpoints (default: that of the '
        'config, else work_dirs/ and the name of the config)',
    )
    parser.add_argument(
        '--launcher',
        choices=LAUNCHERS,
        default='none',
        help='what started the processes (default: none, one process)',
    )
    # torchrun sets the variable; older launchers pass the argument.
    parser.add_argument(
        '--local_rank',
        '--local-rank',
        type=int,
        default=0,
        help=argparse.SUPPRESS,
    )


def _config_root() -> Path:
    """Return the directory of the configs of mmssm."""
    package = Path(mmssm.__file__).parent
    installed = package / '.mim' / 'configs'
    return installed if installed.is_dir() else package.parent / 'configs'


def _find_packaged(name: str) -> Path:
    """Return the path of ``package::path`` in an installed library."""
    package, _, relative = name.partition('::')
    distribution = MODULE2PACKAGE.get(package)
    if distribution is None or not is_installed(distribution):
        raise FileNotFoundError(
            f'config `{name}` names the package `{package}`, which is not '
            'installed or not a package of OpenMMLab'
        )
    if package == 'mmssm':
        root = _config_root()
    else:
        root = Path(get_installed_path(distribution), '.mim', 'configs')
    return root / relative


def find_config(name: str) -> str:
    """Return the path of a config.

    Args:
        name (str): A path; a path inside the installed mmssm, with or
            without ``configs/``; or ``package::path``.

    Returns:
        str: Path of an existing file.

    Raises:
        FileNotFoundError: There is no such config; names near ones.
    """
    if '::' in name:
        candidates = [_find_packaged(name)]
    else:
        root = _config_root()
        candidates = [Path(name), root / name, root.parent / name]
    for path in candidates:
        if path.is_file():
            return str(path)

    # Beside the wrong path, and everywhere in the package.
    beside = candidates[0].parent.glob('*.py')
    packaged = _config_root().rglob('*.py')
    known = {
        path.stem: str(path)
        for path in (*packaged, *beside)
        if '_base_' not in path.parts
    }
    near = get_close_matches(candidates[0].stem, known, n=3, cutoff=0.5)
    hint = ''.join(f'\n  {known[match]}' for match in near)
    raise FileNotFoundError(
        f'config `{name}` was not found'
        + (f'; did you mean{hint}' if near else '')
    )


def load_config(name: str, options: dict | None = None) -> Config:
    """Read a config and apply the options of the command line.

    Args:
        name (str): As for :func:`find_config`.
        options (dict, optional): Settings to override, by dotted key.

    Returns:
        Config: The config.

    Raises:
        FileNotFoundError: There is no such config.
        ValueError: The file is no config, or an option does not fit it.
    """
    path = find_config(name)
    try:
        cfg = Config.fromfile(path)
    except (OSError, SyntaxError, ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f'config `{path}` cannot be read ({type(error).__name__}: {error})'
        ) from error
    if options is not None:
        _warn_of_new_settings(cfg, options)
        try:
            cfg.merge_from_dict(options)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f'--cfg-options do not fit `{path}`: {error.args[0]}'
            ) from error
    return cfg


def _warn_of_new_settings(cfg: Config, options: dict[str, Any]) -> None:
    """Warn of options that neither the config nor the Runner knows."""
    names = {key.partition('.')[0] for key in options}
    if names <= set(cfg):
        return
    from mmengine.runner import Runner

    known = {*cfg, *inspect.signature(Runner).parameters, *OTHER_SETTINGS}
    for name in sorted(names - known):
        near = get_close_matches(name, known, n=1)
        hint = f'; did you mean `{near[0]}`?' if near else ''
        warnings.warn(
            f'--cfg-options sets `{name}`, which the config does not have'
            f'{hint}',
            stacklevel=3,
        )


def set_work_dir(cfg: Config, work_dir: str | None, config: str) -> None:
    """Set the work directory: the argument, the config's, or by its name.

    Args:
        cfg (Config): Runner config, changed in place.
        work_dir (str, optional): The argument of the command line.
        config (str): Name of the config.
    """
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(config).stem))


def set_scope_defaults(cfg: Config) -> None:
    """Fill in what the parent library's own tools fill in.

    Configs of mmpretrain leave the options of the data loaders to its
    ``tools/train.py``.

    Args:
        cfg (Config): Runner config, changed in place.
    """
    if cfg.get('default_scope') != 'mmpretrain':
        return
    for field in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = cfg.get(field)
        if loader is None:
            continue
        loader.setdefault('collate_fn', dict(type='default_collate'))
        loader.setdefault('pin_memory', is_cuda_available())
        # torch refuses persistent workers where there are none.
        loader.setdefault('persistent_workers', loader.num_workers > 0)


def build_runner(cfg: Config, local_rank: int = 0) -> 'Runner':
    """Build the runner of a config.

    Args:
        cfg (Config): Runner config.
        local_rank (int): Number of the process on this machine, for
            launchers that pass it as an argument.

    Returns:
        Runner: mmengine's Runner, or the one that ``runner_type`` names.
    """
    # mmengine.runner imports OpenCV: only after prepare_environment() has
    # said what to do where it is missing.
    from mmengine.runner import Runner

    os.environ.setdefault('LOCAL_RANK', str(local_rank))
    if 'runner_type' in cfg:
        return RUNNERS.build(cfg)
    return Runner.from_cfg(cfg)


def check_exists(checkpoint: str) -> None:
    """Check that a local checkpoint is there.

    Args:
        checkpoint (str): Path, or URL of any kind that mmengine reads.

    Raises:
        FileNotFoundError: It is a path and there is no such file.
    """
    path = Path(checkpoint)
    if '://' in checkpoint or path.is_file():
        return
    folder = path.parent
    others = sorted(str(p) for p in folder.glob('*.pth'))
    raise FileNotFoundError(
        f'checkpoint `{checkpoint}` was not found; '
        + (
            f'in that directory there are: {", ".join(others)}'
            if others
            else f'there are no .pth files in `{folder}`'
        )
    )


def _shorten(names: list[str]) -> str:
    """Return the first names of a list and the number of the others."""
    more = f' and {len(names) - 3} more' if len(names) > 3 else ''
    return ', '.join(names[:3]) + more


def _read_checkpoint(checkpoint: str) -> Any:
    """Return what a checkpoint holds, on the CPU."""
    from mmengine.runner import CheckpointLoader

    try:
        return CheckpointLoader.load_checkpoint(checkpoint, 'cpu')
    except OSError:
        raise
    # Bytes that are no pickle can raise anything.
    except Exception as error:
        raise ValueError(
            f'`{checkpoint}` is not a checkpoint of PyTorch, or is not '
            f'complete ({type(error).__name__}: {error})'
        ) from error


def check_resumable(checkpoint: str) -> None:
    """Check that a training can go on from a checkpoint.

    Args:
        checkpoint (str): Path or URL.

    Raises:
        FileNotFoundError: It is a path and there is no such file.
        ValueError: It is no checkpoint, or one of weights alone.
    """
    check_exists(checkpoint)
    content = _read_checkpoint(checkpoint)
    is_dict = isinstance(content, dict)
    needed = ('state_dict', 'meta', 'message_hub')
    missing = [k for k in needed if not is_dict or k not in content]
    if missing:
        raise ValueError(
            f'`{checkpoint}` holds no state of a training to go on from (it '
            f'lacks {", ".join(missing)}); a training starts from weights '
            'alone with --cfg-options load_from=FILE'
        )


def load_weights(model: nn.Module, checkpoint: str) -> None:
    """Load weights into a model and refuse those of another model.

    mmengine only logs what does not match, and a test then scores random
    weights. A phase recognizer takes only weights that fit entirely: what it
    lacks belongs to another recognizer. For the models of the parent
    libraries such weights are logged: they may belong to a part that is used
    in training only.

    Args:
        model (nn.Module): Model to fill.
        checkpoint (str): Path or URL.

    Raises:
        ValueError: The file is no checkpoint, or lacks weights of the model
            or has them in other shapes; for a phase recognizer also if it
            has weights that the model lacks.
    """
    from mmssm.apis.loading import load_exactly
    from mmssm.models.recognizers import PhaseRecognizer

    content = _read_checkpoint(checkpoint)
    is_dict = isinstance(content, dict)
    state = content.get('state_dict', content) if is_dict else {}
    is_state = all(isinstance(v, torch.Tensor) for v in state.values())
    if not state or not is_state:
        keys = _shorten([str(key) for key in state]) or 'none'
        raise ValueError(
            f'`{checkpoint}` holds no weights of an OpenMMLab model (keys: '
            f'{keys}); files published by authors are converted by '
            'tools/model_converters first'
        )
    # Saved from inside a data-parallel wrapper.
    state = {key.removeprefix('module.'): state[key] for key in state}
    if isinstance(model, PhaseRecognizer):
        load_exactly(model, {'state_dict': state}, f'`{checkpoint}`')
        return
    try:
        result = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(
            f'checkpoint `{checkpoint}` does not fit the model of the '
            f'config: {error}'
        ) from error
    missing = [
        key
        for key in result.missing_keys
        if not key.endswith('num_batches_tracked')
    ]
    if missing:
        raise ValueError(
            f'checkpoint `{checkpoint}` does not fit the model of the '
            f'config: it lacks {len(missing)} of {len(model.state_dict())} '
            f'weights ({_shorten(missing)}); it has weights that the model '
            f'lacks: {_shorten(result.unexpected_keys) or "none"}'
        )
    if result.unexpected_keys:
        print_log(
            f'{len(result.unexpected_keys)} weights of `{checkpoint}` are '
            'not in the model and are left out: '
            f'{_shorten(result.unexpected_keys)}. Is it the checkpoint of '
            'this config?',
            logger='current',
            level=logging.WARNING,
        )
