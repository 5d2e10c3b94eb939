"""What fits into the kernels of the pole scan and of its denominator."""

from torch import Tensor

# Outputs that a kernel holds in registers: the native ones, the Triton ones.
_LARGEST_ORDER_ON_CPU = 32
_LARGEST_ORDER = 16


def fits_kernels(order: int, tensor: Tensor) -> bool:
    """Whether the kernels of the device of ``tensor`` serve an order.

    Larger orders are served by torch unless another backend is asked for.
    """
    if tensor.device.type == 'cpu':
        return order <= _LARGEST_ORDER_ON_CPU
    return order <= _LARGEST_ORDER
