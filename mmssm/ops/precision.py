"""What dtype an operator computes in, and how autocast is kept out of it."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of decay, state, rotation and sums: at least float32.

    Args:
        dtype (torch.dtype): Dtype of the data given to the operator.

    Returns:
        torch.dtype: float64 for float64, else float32.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def autocast_off(tensor: Tensor) -> AbstractContextManager:
    """Context in which autocast leaves ops on the device of ``tensor`` alone.

    Args:
        tensor (Tensor): Any tensor of the computation.

    Returns:
        AbstractContextManager: Context manager; free when autocast is off.
    """
    device_type = tensor.device.type
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    if not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
