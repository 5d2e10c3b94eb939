"""What every Triton launcher needs: tuning, the device, the interpreter."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return triton.knobs.runtime.interpret


def autotune(
    configs: list[triton.Config], key: list[str]
) -> Callable[[Callable], Callable]:
    """Decorate a kernel with `triton.autotune`.

    The interpreter cannot measure time, so that there the first config is
    the only one: put the one first that suits small inputs.

    Args:
        configs (list[triton.Config]): Configurations to choose from.
        key (list[str]): Arguments whose change starts a new choice.

    Returns:
        Callable: Decorator of a jitted kernel.
    """
    return triton.autotune(configs[:1] if interpreted() else configs, key)


def device_guard(tensor: Tensor) -> AbstractContextManager:
    """Make the device of ``tensor`` the current one, where kernels start."""
    if tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    return nullcontext()
