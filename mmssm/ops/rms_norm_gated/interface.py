"""Public function of the gated RMS normalisation: checks, dispatch."""

from torch import Tensor

from mmssm.ops.checks import (
    check_count,
    check_device,
    check_floating,
    check_floating_or_none,
    check_shape,
)
from mmssm.ops.dispatch import choose_backend
from mmssm.ops.precision import autocast_off, working_dtype
from mmssm.ops.rms_norm_gated.autograd import rms_norm_gated_op
from mmssm.ops.rms_norm_gated.reference import rms_norm_gated_reference
from mmssm.ops.rms_norm_gated.sizes import LARGEST_GROUP
from mmssm.ops.rms_norm_gated.vectorized import rms_norm_gated_torch

_AVAILABLE = ('reference', 'torch', 'triton')


def rms_norm_gated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    eps: float = 1e-5,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Divide by the root mean square of the last axis, and gate.

    ::

        y = RMSNorm(x * silu(z)) * weight + bias          gate first
        y = (RMSNorm(x) * weight + bias) * silu(z)        norm_before_gate
        RMSNorm(u) = u / sqrt(mean(u^2) + eps)

    Without ``z`` both are the plain normalisation.

    Args:
        x (Tensor): Input, shape ``(..., dim)``. Any strides.
        weight (Tensor): Scale of each channel, shape ``(dim,)``.
        bias (Tensor, optional): Shape ``(dim,)``.
        z (Tensor, optional): Gate, shape like ``x``.
        eps (float): Added to the mean square. Default: 1e-5.
        group_size (int, optional): Number of consecutive channels that share
            a mean square; divides ``dim``. Default: ``dim``.
        norm_before_gate (bool): Whether the gate multiplies the normalised
            input instead of the input. Default: False.
        backend (str, optional): ``'reference'``, ``'torch'`` or
            ``'triton'``; None picks by device.

    Returns:
        Tensor: Like ``x``, in its dtype.

    Shape notes:
        Everything is computed in float32 (float64 if ``x`` is float64), under
        autocast too. Every tensor gets gradients.

    Raises:
        TypeError: If a tensor is not real floating, or ``group_size`` is not
            an int.
        ValueError: If a shape does not fit, or ``group_size`` does not divide
            ``dim``.
        RuntimeError: If ``backend`` cannot serve the call.

    Example:
        >>> import torch
        >>> from mmssm.ops import rms_norm_gated
        >>> x, z = torch.randn(2, 1, 9, 16)
        >>> y = rms_norm_gated(x, torch.ones(16), z=z)
        >>> y.shape
        torch.Size([1, 9, 16])

    Source:
        Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019);
        argument names of ``rmsnorm_fn`` of ``mamba_ssm``.
    """
    check_floating(x=x, weight=weight)
    check_floating_or_none(bias=bias, z=z)
    check_device(x=x, weight=weight, bias=bias, z=z)
    if x.ndim < 1:
        raise ValueError('`x` has shape (); expected (..., dim)')
    dim = x.shape[-1]
    check_shape('weight', weight, '(dim,)', (dim,))
    check_shape('bias', bias, '(dim,)', (dim,))
    check_shape('z', z, '(..., dim)', tuple(x.shape))
    if group_size is None:
        group_size = dim
    check_count('group_size', group_size)
    if dim % group_size:
        raise ValueError(
            f'`group_size` is {group_size}; expected a divisor of dim = {dim}'
        )
    if backend is None and group_size > LARGEST_GROUP:
        backend = 'torch'
    backend = choose_backend('rms_norm_gated', backend, x, _AVAILABLE)
    with autocast_off(x):
        if backend == 'triton' and x.numel():
            y, _ = rms_norm_gated_op(
                x, weight, bias, z, eps, group_size, norm_before_gate, backend
            )
            return y
        if backend == 'reference':
            norm = rms_norm_gated_reference
        else:
            norm = rms_norm_gated_torch
        dtype = working_dtype(x.dtype)
        return norm(
            x.to(dtype),
            weight.to(dtype),
            None if bias is None else bias.to(dtype),
            None if z is None else z.to(dtype),
            eps,
            group_size,
            norm_before_gate,
        ).to(x.dtype)
