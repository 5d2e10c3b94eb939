"""Mixed precision on machines without an accelerator.

Upstream reason: mmengine's ``AmpOptimWrapper`` asserts that an accelerator is
there. PyTorch has had autocast for CPUs for years: it computes in bfloat16,
which has the range of float32 and needs no loss scaling.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

_AMP = 'AmpOptimWrapper'
_CPU_AMP = 'CPUAmpOptimWrapper'


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Optimizer wrapper whose forward runs under bfloat16 CPU autocast.

    Weights, gradients and optimizer state stay in float32. It is registered
    in mmengine's root, so that configs of every scope find it.

    Args:
        **kwargs: Arguments of mmengine's ``OptimWrapper``.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Run the forward of ``model`` in mixed precision.

        Args:
            model (nn.Module): The model in training.
        """
        with (
            super().optim_context(model),
            torch.autocast('cpu', dtype=torch.bfloat16),
        ):
            yield

    def load_state_dict(self, state_dict: dict) -> None:
        """Load optimizer state, also that of a GPU run.

        Args:
            state_dict (dict): State; the one of a loss scaler is ignored.
        """
        super().load_state_dict(
            {k: v for k, v in state_dict.items() if k != 'loss_scaler'}
        )


def prepare_amp(cfg: Config) -> None:
    """Choose the mixed-precision wrapper that this machine can run.

    ``AmpOptimWrapper`` becomes :class:`CPUAmpOptimWrapper` without an
    accelerator and back with one, since configs saved in a work directory
    travel between machines. Other wrappers stay.

    Args:
        cfg (Config): Runner config, changed in place.
    """
    wrapper = cfg.get('optim_wrapper') or {}
    kind = str(wrapper.get('type')).rpartition('.')[2]
    if kind == _AMP and get_device() == 'cpu':
        print_log(
            'No accelerator was found: mixed precision runs in bfloat16 on '
            'the CPU, without loss scaling.',
            logger='current',
        )
        for key in ('loss_scale', 'dtype', 'use_fsdp'):
            wrapper.pop(key, None)
        wrapper.type = _CPU_AMP
    elif kind == _CPU_AMP and get_device() != 'cpu':
        wrapper.type = _AMP
