"""What every Triton launcher needs: tuning, the device, the interpreter."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return triton.knobs.runtime.interpret


def autotune(
    configs: list[triton.Config],
    key: list[str],
    fits: Callable[..., bool] | None = None,
) -> Callable[[Callable], Callable]:
    """Decorate a kernel with `triton.autotune`.

    The interpreter cannot measure time, so that there the first config is
    the only one: put the one first that suits small inputs.

    Tuning runs a kernel many times. One that changes a tensor which it also
    reads stays plain.

    Args:
        configs (list[triton.Config]): Configurations to choose from.
        key (list[str]): Arguments whose change starts a new choice; a change
            of a dtype always does.
        fits (Callable, optional): Whether a config suits a call; takes the
            config and the keywords of the call. Default: all do.

    Returns:
        Callable: Decorator of a jitted kernel.
    """

    def prune(
        configs: list[triton.Config], _: dict[str, Any], **keywords: Any
    ) -> list[triton.Config]:
        return [config for config in configs if fits(config, **keywords)]

    return triton.autotune(
        configs[:1] if interpreted() else configs,
        key,
        prune_configs_by={'early_config_prune': prune} if fits else None,
    )


def over_warps(*numbers: int, stages: int = 3) -> list[triton.Config]:
    """Configurations that differ in the number of warps only."""
    return [
        triton.Config({}, num_warps=number, num_stages=stages)
        for number in numbers
    ]


def device_guard(tensor: Tensor) -> AbstractContextManager:
    """Make the device of ``tensor`` the current one, where kernels start."""
    if tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    return nullcontext()
