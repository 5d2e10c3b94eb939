"""The table of tolerances and its comparison."""

import pytest
import torch

from mmssm.testing import TOLERANCES, assert_close, relative_rms_error

FLOAT32 = 'torch_vs_reference_float32'


def test_relative_error_decides():
    expected = torch.full((100,), 1e3)
    assert_close(expected * (1 + 5e-6), expected, FLOAT32)
    with pytest.raises(AssertionError, match=r'y \(torch_vs.*RMS error'):
        assert_close(expected * (1 + 5e-5), expected, FLOAT32, 'y')


def test_gradients_have_their_own_bound():
    expected = torch.ones(10, dtype=torch.float64)
    actual = expected * (1 + 3e-5)
    assert_close(actual, expected, FLOAT32, gradient=True)
    with pytest.raises(AssertionError, match='allowed 1.0e-05'):
        assert_close(actual, expected, FLOAT32)


def test_floor_serves_zeros():
    zeros = torch.zeros(4)
    assert_close(zeros + 1e-7, zeros, FLOAT32)
    with pytest.raises(AssertionError, match='relative inf'):
        assert_close(zeros + 1e-5, zeros, FLOAT32)


@pytest.mark.parametrize('bad', [torch.nan, torch.inf])
def test_non_finite_fails_on_either_side(bad):
    good = torch.ones(3)
    broken = good.clone()
    broken[1] = bad
    for actual, expected in ((broken, good), (good, broken), (broken, broken)):
        with pytest.raises(AssertionError, match='holds 1 NaN or infinite'):
            assert_close(actual, expected, FLOAT32)


def test_shapes_must_agree():
    with pytest.raises(AssertionError, match=r'shape \(1, 3\); expected \(3,'):
        assert_close(torch.ones(1, 3), torch.ones(3), FLOAT32)


def test_relative_rms_error():
    expected = torch.tensor([3.0, 4.0])
    actual = torch.tensor([3.0, 5.0])
    assert relative_rms_error(actual, expected) == pytest.approx(0.2)
    assert relative_rms_error(torch.ones(0), torch.ones(0)) == 0


def test_lower_precision_is_never_tighter():
    order = ['float32', 'float16', 'bfloat16']
    rows = [TOLERANCES[f'triton_vs_reference_{name}'] for name in order]
    for finer, coarser in zip(rows, rows[1:], strict=False):
        assert finer.output < coarser.output
        assert finer.gradient < coarser.gradient
