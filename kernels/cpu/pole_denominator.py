"""Filter coefficients of poles on the CPU: calls of pole_denominator.c."""

import ctypes

import torch
from torch import Tensor

from mmssm.kernels.cpu.arguments import TensorArgument, tensor_argument
from mmssm.kernels.cpu.library import function
from mmssm.ops.precision import working_dtype

# As in pole_denominator.c.
MAX_ORDER = 32

_PARAMETERS = ('rho_hat', 'theta_hat', 'real_rho_hat', 'sign_hat')
_INPUTS = (*_PARAMETERS, 'rho_mod', 'theta_mod')
_OPTIONS = ('eps', 'delta_min', 'delta_0', 'lambda_theta')


class PoleInputs(ctypes.Structure):
    """Mirror of ``pole_inputs`` in pole_denominator.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ('tokens', 'groups')),
        *((name, ctypes.c_int64) for name in ('pairs', 'reals')),
        *((name, ctypes.c_int64) for name in ('rho_columns', 'theta_columns')),
        ('threads', ctypes.c_int64),
        *((name, ctypes.c_double) for name in _OPTIONS),
        *((name, TensorArgument) for name in _INPUTS),
    ]


class ForwardArguments(ctypes.Structure):
    """Mirror of ``pole_denominator_fwd_args`` in pole_denominator.c."""

    _fields_ = [('inputs', PoleInputs), ('q', TensorArgument)]


class BackwardArguments(ctypes.Structure):
    """Mirror of ``pole_denominator_bwd_args`` in pole_denominator.c."""

    _fields_ = [
        ('inputs', PoleInputs),
        ('grad_q', TensorArgument),
        *((f'd{name}', TensorArgument) for name in _INPUTS),
    ]


def pole_denominator_fwd(
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    eps: float,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
    isa: str | None = None,
) -> Tensor:
    """Multiply out the factors of all poles.

    Args:
        rho_hat (Tensor): Radii of the pairs, shape ``(groups, pairs)``.
        theta_hat (Tensor): Angles of the pairs, likewise.
        real_rho_hat (Tensor): Radii of the real poles, ``(groups, reals)``.
        sign_hat (Tensor): Signs of the real poles, likewise.
        rho_mod (Tensor, optional): Modulation of the radii, shape
            ``(batch, length, 1 or groups)``.
        theta_mod (Tensor, optional): Modulation of the angles, likewise.
        eps (float): Margin to the unit circle.
        delta_min (float): Offset of the radius scale.
        delta_0 (float): Normalisation of the radius scale.
        lambda_theta (float): Bound of the angle modulation.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        Tensor: Coefficients ``(batch, length, groups, reals + 2 pairs)`` in
        the working dtype.

    Raises:
        ValueError: If there are more than `MAX_ORDER` coefficients.
        RuntimeError: If the kernels are not there.
    """
    dtype = working_dtype(rho_hat.dtype)
    shape = _shape(rho_hat, real_rho_hat, rho_mod, theta_mod)
    q = rho_hat.new_empty(shape, dtype=dtype)
    tensors = _cast(
        dtype, rho_hat, theta_hat, real_rho_hat, sign_hat, rho_mod, theta_mod
    )
    options = (eps, delta_min, delta_0, lambda_theta)
    kernel = function('pole_denominator_fwd', dtype, ForwardArguments, isa)
    kernel(
        ForwardArguments(_inputs(shape, tensors, options), tensor_argument(q))
    )
    return q


def pole_denominator_bwd(
    grad_q: Tensor,
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
    eps: float,
    delta_min: float,
    delta_0: float,
    lambda_theta: float,
    isa: str | None = None,
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `pole_denominator_fwd`.

    Args:
        grad_q (Tensor): Gradient of the coefficients.
        rho_hat (Tensor): As in the forward pass, like the following ones.
        theta_hat (Tensor): Angles of the pairs.
        real_rho_hat (Tensor): Radii of the real poles.
        sign_hat (Tensor): Signs of the real poles.
        rho_mod (Tensor, optional): Modulation of the radii.
        theta_mod (Tensor, optional): Modulation of the angles.
        eps (float): Margin to the unit circle.
        delta_min (float): Offset of the radius scale.
        delta_0 (float): Normalisation of the radius scale.
        lambda_theta (float): Bound of the angle modulation.
        isa (str, optional): Instruction set. Default: the fastest one.

    Returns:
        tuple[Tensor | None, ...]: Gradients of the six tensors; None for an
        absent modulation.

    Raises:
        ValueError: If there are more than `MAX_ORDER` coefficients.
        RuntimeError: If the kernels are not there.
    """
    dtype = working_dtype(rho_hat.dtype)
    shape = _shape(rho_hat, real_rho_hat, rho_mod, theta_mod)
    inputs = (rho_hat, theta_hat, real_rho_hat, sign_hat, rho_mod, theta_mod)
    tensors = _cast(dtype, *inputs)
    grad_q = grad_q.to(dtype).contiguous()
    gradients = [
        None if t is None else t.new_empty(t.shape, dtype=dtype)
        for t in inputs
    ]
    options = (eps, delta_min, delta_0, lambda_theta)
    kernel = function('pole_denominator_bwd', dtype, BackwardArguments, isa)
    kernel(
        BackwardArguments(
            _inputs(shape, tensors, options),
            tensor_argument(grad_q),
            *map(tensor_argument, gradients),
        )
    )
    return tuple(
        None if t is None else gradient.to(t.dtype)
        for gradient, t in zip(gradients, inputs, strict=True)
    )


def _shape(
    rho_hat: Tensor,
    real_rho_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
) -> tuple[int, ...]:
    """Shape of the coefficients."""
    modulation = theta_mod if rho_mod is None else rho_mod
    tokens = (1, 1) if modulation is None else modulation.shape[:2]
    order = real_rho_hat.shape[1] + 2 * rho_hat.shape[1]
    if order > MAX_ORDER:
        raise ValueError(
            f'there are {order} coefficients; the native kernel serves at '
            f'most {MAX_ORDER}, use another backend'
        )
    return (*tokens, rho_hat.shape[0], order)


def _cast(
    dtype: torch.dtype,
    rho_hat: Tensor,
    theta_hat: Tensor,
    real_rho_hat: Tensor,
    sign_hat: Tensor,
    rho_mod: Tensor | None,
    theta_mod: Tensor | None,
) -> list[Tensor | None]:
    """Inputs in the working dtype; modulations dense."""
    return [
        *(t.to(dtype) for t in (rho_hat, theta_hat, real_rho_hat, sign_hat)),
        *(
            None if t is None else t.to(dtype).contiguous()
            for t in (rho_mod, theta_mod)
        ),
    ]


def _inputs(
    shape: tuple[int, ...],
    tensors: list[Tensor | None],
    options: tuple[float, ...],
) -> PoleInputs:
    batch, length, groups, _ = shape
    columns = (1 if t is None else t.shape[-1] for t in tensors[4:])
    return PoleInputs(
        *(batch * length, groups),
        *(tensors[0].shape[1], tensors[2].shape[1]),
        *(*columns, torch.get_num_threads()),
        *options,
        *map(tensor_argument, tensors),
    )
