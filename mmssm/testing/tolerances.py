"""The one table of tolerances, and the comparison that uses it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from what it is compared with.

    Attributes:
        output (float): Bound on the relative RMS error of outputs and
            states.
        gradient (float): The same for gradients.
        floor (float): Absolute RMS error that always passes, for results
            that are zero or nearly so.
    """

    output: float
    gradient: float
    floor: float


# Tightening is free; loosening needs a reason in the commit. There is no
# switch that weakens a value. Values are starting points until the error was
# measured on the device; a measured error is recorded beside its value.
TOLERANCES = {
    # Measured on a CPU, worst of tests/test_ops: 1e-14, 3e-10 (of a softplus
    # above 20, whose slope the definition takes as 1).
    'torch_vs_reference_float64': Tolerance(1e-10, 1e-9, 1e-12),
    # Measured on a CPU, worst of tests/test_ops: 4e-7, 5e-6.
    'torch_vs_reference_float32': Tolerance(1e-5, 5e-5, 1e-6),
    # The rounding of the result itself. Measured: 3e-4, 3e-4.
    'torch_vs_reference_float16': Tolerance(1e-3, 1e-3, 1e-5),
    # Measured: 3e-3, 3e-3.
    'torch_vs_reference_bfloat16': Tolerance(1e-2, 1e-2, 1e-4),
    # Measured with AVX-512, worst of tests/test_ops/parity: 4e-13, 4e-12.
    'native_vs_reference_float64': Tolerance(1e-11, 1e-10, 1e-12),
    # Measured with AVX-512, worst of tests/test_ops/parity: 4e-7, 2e-6.
    'native_vs_reference_float32': Tolerance(1e-5, 5e-5, 1e-6),
    # Measured: 3e-4, 3e-4.
    'native_vs_reference_float16': Tolerance(1e-3, 1e-3, 1e-5),
    # Measured: 3e-3, 3e-3.
    'native_vs_reference_bfloat16': Tolerance(1e-2, 1e-2, 1e-4),
    # Dot products in IEEE float32.
    'triton_vs_reference_float32': Tolerance(1e-3, 5e-3, 1e-5),
    'triton_vs_reference_tf32': Tolerance(5e-3, 5e-3, 1e-5),
    'triton_vs_reference_float16': Tolerance(5e-3, 1e-2, 1e-4),
    'triton_vs_reference_bfloat16': Tolerance(1e-2, 2e-2, 1e-3),
}


def relative_rms_error(actual: Tensor, expected: Tensor) -> float:
    """Compute RMS(actual - expected) / RMS(expected) in float64.

    Args:
        actual (Tensor): Result.
        expected (Tensor): What it should be, same shape.

    Returns:
        float: Relative error; 0 for empty tensors, infinite if only
        ``expected`` is zero.
    """
    error, scale = _rms_error_and_scale(actual, expected)
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf


def assert_close(
    actual: Tensor,
    expected: Tensor,
    comparison: str,
    what: str = '',
    gradient: bool = False,
) -> None:
    """Assert that a result is as close as the table of tolerances demands.

    It passes if RMS(actual - expected) is at most
    ``tolerance * RMS(expected) + floor``. Dtypes may differ, shapes not.

    Args:
        actual (Tensor): Result.
        expected (Tensor): What it should be.
        comparison (str): Key of `TOLERANCES`.
        what (str): Name of the compared quantity, for the message.
        gradient (bool): Whether the bound for gradients holds. Default:
            False.

    Raises:
        AssertionError: If the two are too far apart or differ in shape, or
            if either holds a NaN or an infinity.
        KeyError: If the table has no such comparison.

    Example:
        >>> import torch
        >>> from mmssm.testing import assert_close
        >>> x = torch.ones(3)
        >>> assert_close(x + 1e-7, x, 'torch_vs_reference_float32', 'x')
    """
    tolerance = TOLERANCES[comparison]
    bound = tolerance.gradient if gradient else tolerance.output
    label = f'{what or "result"} ({comparison})'
    if actual.shape != expected.shape:
        raise AssertionError(
            f'{label}: shape {tuple(actual.shape)}; expected '
            f'{tuple(expected.shape)}'
        )
    for side, tensor in (('actual', actual), ('expected', expected)):
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise AssertionError(
                f'{label}: {side} holds {bad} NaN or infinite values'
            )
    error, scale = _rms_error_and_scale(actual, expected)
    if error > bound * scale + tolerance.floor:
        raise AssertionError(
            f'{label}: RMS error {error:.3e} against RMS {scale:.3e} '
            f'(relative {error / scale if scale else math.inf:.3e}); allowed '
            f'{bound:.1e} relative + {tolerance.floor:.1e}'
        )


def _rms_error_and_scale(
    actual: Tensor, expected: Tensor
) -> tuple[float, float]:
    if expected.numel() == 0:
        return 0.0, 0.0
    actual = actual.detach().to('cpu', torch.float64)
    expected = expected.detach().to('cpu', torch.float64)
    error = (actual - expected).square().mean().sqrt()
    return error.item(), expected.square().mean().sqrt().item()
