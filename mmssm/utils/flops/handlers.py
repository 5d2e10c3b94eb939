"""FLOPs of one call of an operator.

A multiplication, an addition and an elementary function (exp, sigmoid, a
division) are one FLOP each, so a multiply-add is two. Moving and selecting
numbers is none.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

Handler = Callable[[dict[str, Any], Any], int]

_HANDLERS: dict[str, Handler] = {}
# Of aten; views need no entry.
_MOVES = """
    _local_scalar_dense _reshape_copy _to_copy _unsafe_view all any arange
    argsort bernoulli bitwise_not cat clone constant_pad_nd copy empty
    empty_like empty_strided eq eye fill flip full full_like gather ge gt
    index index_put index_select isnan le lift_fresh linspace logical_and
    logical_not logical_or lt masked_fill ne new_empty new_full new_ones
    new_zeros nonzero ones ones_like pixel_shuffle pixel_unshuffle
    promote_types reflection_pad2d repeat replication_pad2d roll scalar_tensor
    scatter sort split_with_sizes_copy stack topk tril triu where zero zeros
    zeros_like
"""
# One FLOP per number that goes in.
_REDUCTIONS = """
    _adaptive_avg_pool2d amax amin argmax argmin avg_pool2d cumprod cumsum
    linalg_vector_norm logsumexp max mean min norm prod sum
"""


def register_flops(*names: str) -> Callable[[Handler], Handler]:
    """Register the FLOPs of operators.

    Args:
        *names (str): Such as ``'mmssm::pole_scan'`` or
            ``'aten::_softmax'``.

    Returns:
        Callable: Decorator of a function that maps the arguments of a call by
        name, and what it returned, to FLOPs.

    Raises:
        ValueError: If one of them has a handler already.
    """

    def decorate(handler: Handler) -> Handler:
        for name in names:
            if name in _HANDLERS:
                raise ValueError(f'{name} has a handler already')
            _HANDLERS[name] = handler
        return handler

    return decorate


def operator_flops(
    op: OpOverload, args: tuple, kwargs: dict[str, Any], output: Any
) -> tuple[str, int] | None:
    """Count one call.

    Args:
        op (OpOverload): The operator.
        args (tuple): Its positional arguments.
        kwargs (dict): Its other arguments.
        output (Any): What it returned.

    Returns:
        tuple[str, int] or None: Kind (see :class:`LayerFlops`) and FLOPs;
        None if nobody says how to count the operator.
    """
    name = _functional_name(op)
    if name in _HANDLERS:
        kind = 'operators' if op.namespace == 'mmssm' else 'elementwise'
        return kind, int(_HANDLERS[name](named(op, args, kwargs), output))
    if op.overloadpacket in flop_registry:
        flops = flop_registry[op.overloadpacket]
        return 'dense', int(flops(*args, **kwargs, out_val=output))
    if op.namespace != 'aten':
        return None
    name = name.removeprefix('aten::')
    if name in _MOVES.split() or op.is_view:
        return 'elementwise', 0
    if name in _REDUCTIONS.split():
        return 'elementwise', args[0].numel()
    packet = getattr(torch.ops.aten, name)
    if torch.Tag.pointwise in getattr(packet, packet.overloads()[0]).tags:
        return 'elementwise', _numel(output)
    return None


def _functional_name(op: OpOverload) -> str:
    """Name without overload; of an in-place operator, the other's."""
    name = op.overloadpacket.__name__
    in_place = name.endswith('_') and not name.endswith('__')
    if in_place and hasattr(getattr(torch.ops, op.namespace), name[:-1]):
        name = name[:-1]
    return f'{op.namespace}::{name}'


def named(
    op: OpOverload, args: tuple, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of a call by the names of the operator's schema."""
    names = [argument.name for argument in op._schema.arguments]
    bound = {
        argument.name: argument.default_value
        for argument in op._schema.arguments
    }
    bound.update(zip(names, args, strict=False))
    return {**bound, **kwargs}


def _numel(output: Any) -> int:
    if isinstance(output, Tensor):
        return output.numel()
    if isinstance(output, (list, tuple)):
        return sum(map(_numel, output))
    return 0


@register_flops('aten::addcmul', 'aten::addcdiv', 'aten::lerp')
def _three_operands(_: dict, output: Tensor) -> int:
    return 2 * output.numel()


@register_flops('aten::mv', 'aten::dot', 'aten::vdot')
def _vector_product(arguments: dict, _: Tensor) -> int:
    return 2 * arguments['self'].numel()


@register_flops('aten::log_sigmoid_forward')
def _log_sigmoid(_: dict, output: tuple) -> int:
    return output[0].numel()


@register_flops('aten::_softmax', 'aten::_log_softmax')
def _softmax(arguments: dict, _: Tensor) -> int:
    # Maximum, difference, exp, sum, division.
    return 5 * arguments['self'].numel()


@register_flops('aten::native_layer_norm', 'aten::native_group_norm')
def _norm(arguments: dict, _: tuple) -> int:
    # Mean, difference, square, its sum, product with the inverse root.
    return arguments['input'].numel() * (5 + _affine(arguments))


@register_flops('aten::_fused_rms_norm')
def _rms_norm(arguments: dict, _: tuple) -> int:
    return arguments['input'].numel() * (3 + _affine(arguments))


def _affine(arguments: dict[str, Any]) -> int:
    return sum(arguments.get(name) is not None for name in ('weight', 'bias'))


@register_flops('aten::_linalg_solve_ex')
def _solve(arguments: dict, output: tuple) -> int:
    unknowns = arguments['A'].shape[-1]
    matrices = prod(arguments['A'].shape[:-2])
    return matrices * 2 * unknowns**3 // 3 + 2 * unknowns * output[0].numel()


@register_flops(
    'aten::native_batch_norm',
    'aten::_native_batch_norm_legit',
    'aten::_native_batch_norm_legit_no_training',
    'aten::cudnn_batch_norm',
)
def _batch_norm(_: dict, output: tuple) -> int:
    # Scale and shift; the running statistics are folded into them.
    return 2 * output[0].numel()


@register_flops('aten::max_pool2d_with_indices', 'aten::max_pool2d')
def _max_pool(arguments: dict, output: Any) -> int:
    first = output[0] if isinstance(output, tuple) else output
    kernel = arguments['kernel_size']
    return first.numel() * prod(kernel if len(kernel) > 1 else kernel * 2)


@register_flops('aten::upsample_bilinear2d', 'aten::_upsample_bilinear2d_aa')
def _bilinear(_: dict, output: Tensor) -> int:
    # Three interpolations, of two products and a sum each.
    return 9 * output.numel()


@register_flops('aten::upsample_bicubic2d', 'aten::_upsample_bicubic2d_aa')
def _bicubic(_: dict, output: Tensor) -> int:
    # Five interpolations, of four products and three sums each.
    return 35 * output.numel()


@register_flops('aten::upsample_nearest2d', 'aten::_upsample_nearest_exact2d')
def _nearest(_: dict, __: Tensor) -> int:
    return 0
