"""Launchers of the gated RMS normalisation (`triton` backend)."""

import torch
import triton
from torch import Tensor

from mmssm.kernels.triton.launch import device_guard
from mmssm.kernels.triton.rms_norm_gated_bwd import _rms_norm_gated_bwd_kernel
from mmssm.kernels.triton.rms_norm_gated_fwd import _rms_norm_gated_fwd_kernel
from mmssm.ops.rms_norm_gated.sizes import LARGEST_GROUP

# Up to here a program of the backward kernel has registers for the sums of
# weight and bias too; beyond, they are computed by programs of their own,
# which need no sums along a row and so can be narrow.
_LARGEST_FUSED = 4096
_SUM_COLUMNS = 1024
# Programs that sum over rows: enough for a large GPU, few enough that adding
# up their sums costs nothing.
_SUM_PROGRAMS = 512


def rms_norm_gated_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    eps: float,
    group_size: int | None,
    norm_before_gate: bool,
) -> tuple[Tensor, Tensor]:
    """Normalise groups of channels; everything is computed in float32.

    Args:
        x (Tensor): ``(..., dim)``, any strides, float32, float16 or
            bfloat16, like the other tensors.
        weight (Tensor): ``(dim,)``.
        bias (Tensor, optional): ``(dim,)``.
        z (Tensor, optional): Gate, like ``x``.
        eps (float): Added to the mean square.
        group_size (int, optional): Channels per group. None takes all.
        norm_before_gate (bool): Whether the gate comes after normalisation,
            weight and bias.

    Returns:
        tuple[Tensor, Tensor]: Output like ``x``; one over the root mean
        square, ``(rows, groups)`` in float32.

    Raises:
        RuntimeError: If a group has more channels than a program can hold.
    """
    dim = x.shape[-1]
    group_size = _checked(dim if group_size is None else group_size)
    groups = dim // group_size
    y = torch.empty_like(x)
    flat_x, flat_z, flat_y = _flat(x), _flat(z), _flat(y)
    rows = flat_x.shape[0]
    rstd = x.new_empty(rows, groups, dtype=torch.float32)
    tiling = forward_tiling(rows, group_size)
    with device_guard(x):
        _rms_norm_gated_fwd_kernel[
            (triton.cdiv(rows, tiling['ROWS']), groups)
        ](
            flat_x,
            weight.contiguous(),
            None if bias is None else bias.contiguous(),
            flat_z,
            flat_y,
            rstd,
            rows,
            eps,
            *flat_x.stride(),
            *_strides(flat_z),
            *flat_y.stride(),
            NORM_BEFORE_GATE=norm_before_gate,
            **tiling,
        )
    _copy_if_apart(flat_y, y)
    return y, rstd


def rms_norm_gated_bwd(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    rstd: Tensor,
    eps: float,
    group_size: int | None,
    norm_before_gate: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Compute all gradients; sums over rows are added in a fixed order.

    Args:
        grad_y (Tensor): Gradient of the output, any strides.
        x (Tensor): As in `rms_norm_gated_fwd`, and so the following.
        weight (Tensor): Weight.
        bias (Tensor, optional): Bias.
        z (Tensor, optional): Gate.
        rstd (Tensor): From `rms_norm_gated_fwd`.
        eps (float): Not used: it is in ``rstd``.
        group_size (int, optional): As in the forward pass.
        norm_before_gate (bool): As in the forward pass.

    Returns:
        tuple: Gradients of ``x``, ``weight``, ``bias`` and ``z``, each in
        the dtype of its input. None for absent inputs.

    Raises:
        RuntimeError: If a group has more channels than a program can hold.
    """
    dim = x.shape[-1]
    group_size = _checked(dim if group_size is None else group_size)
    groups = dim // group_size
    dx = torch.empty_like(x)
    dz = None if z is None else torch.empty_like(z)
    flat_grad_y, flat_x, flat_z = _flat(grad_y), _flat(x), _flat(z)
    flat_dx, flat_dz = _flat(dx), _flat(dz)
    rows = flat_x.shape[0]
    launches = backward_tilings(rows, group_size)
    parts = launches[-1]['PARTS']
    programs = min(
        triton.cdiv(rows, launches[-1]['ROWS']),
        max(1, _SUM_PROGRAMS // (groups * parts)),
    )
    dweight = x.new_empty(programs, dim, dtype=torch.float32)
    dbias = None if bias is None else torch.empty_like(dweight)
    for tiling in launches:
        alone = not tiling['WITH_SUMS']
        with device_guard(x):
            _rms_norm_gated_bwd_kernel[
                (rows if alone else programs, groups * tiling['PARTS'])
            ](
                flat_grad_y,
                flat_x,
                weight.contiguous(),
                None if bias is None else bias.contiguous(),
                flat_z,
                rstd,
                flat_dx,
                dweight,
                dbias,
                flat_dz,
                rows,
                *flat_grad_y.stride(),
                *flat_x.stride(),
                *_strides(flat_z),
                *flat_dx.stride(),
                *_strides(flat_dz),
                NORM_BEFORE_GATE=norm_before_gate,
                **tiling,
            )
    _copy_if_apart(flat_dx, dx)
    if z is not None:
        _copy_if_apart(flat_dz, dz)
    return (
        dx,
        dweight.sum(0).to(weight.dtype),
        None if bias is None else dbias.sum(0).to(bias.dtype),
        dz,
    )


def forward_tiling(rows: int, group_size: int) -> dict[str, int]:
    """Choose the tiles of the forward kernel.

    Args:
        rows (int): Rows of the flattened input.
        group_size (int): Channels per group.

    Returns:
        dict[str, int]: Keywords of the kernel.
    """
    columns = triton.next_power_of_2(group_size)
    tile_rows = min(max(1, 2048 // columns), triton.next_power_of_2(rows))
    return dict(
        GROUP=group_size,
        COLUMNS=columns,
        ROWS=tile_rows,
    )


def backward_tilings(
    rows: int, group_size: int
) -> tuple[dict[str, int | bool], ...]:
    """Choose the launches of the backward kernel and their tiles.

    Args:
        rows (int): Rows of the flattened input.
        group_size (int): Channels per group.

    Returns:
        tuple[dict, ...]: Keywords of the kernel for each launch; the last
        one computes the sums over rows.
    """
    columns = triton.next_power_of_2(group_size)
    if columns <= _LARGEST_FUSED:
        tile_rows = min(max(1, 1024 // columns), triton.next_power_of_2(rows))
        fused = dict(
            GROUP=group_size,
            COLUMNS=columns,
            ROWS=tile_rows,
            PARTS=1,
            WITH_INPUTS=True,
            WITH_SUMS=True,
        )
        return (fused,)
    inputs = dict(
        GROUP=group_size,
        COLUMNS=columns,
        ROWS=1,
        PARTS=1,
        WITH_INPUTS=True,
        WITH_SUMS=False,
    )
    sums = dict(
        GROUP=group_size,
        COLUMNS=_SUM_COLUMNS,
        ROWS=1,
        PARTS=triton.cdiv(group_size, _SUM_COLUMNS),
        WITH_INPUTS=False,
        WITH_SUMS=True,
    )
    return inputs, sums


def _checked(group_size: int) -> int:
    if group_size > LARGEST_GROUP:
        raise RuntimeError(
            f'the triton kernel of rms_norm_gated holds at most '
            f'{LARGEST_GROUP} channels of a group, not {group_size}; use '
            f"backend='torch'"
        )
    return group_size


def _flat(tensor: Tensor | None) -> Tensor | None:
    """Rows of channels: a view where the strides allow it, else a copy."""
    if tensor is None:
        return None
    return tensor.reshape(-1, tensor.shape[-1])


def _copy_if_apart(flat: Tensor, tensor: Tensor) -> None:
    """Bring the result home if `_flat` had to give it memory of its own."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view(tensor.shape))


def _strides(flat: Tensor | None) -> tuple[int, int]:
    return (0, 0) if flat is None else flat.stride()
