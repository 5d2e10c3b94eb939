"""The pole denominator in C against the definition."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from mmssm.kernels.cpu.pole_denominator import (
    MAX_ORDER,
    pole_denominator_bwd,
    pole_denominator_fwd,
)
from mmssm.ops.pole_denominator.reference import pole_denominator_reference
from tests.test_kernels.native_checks import (
    EACH_DTYPE,
    EACH_SET,
    NEEDS_LIBRARY,
    check,
    expected,
    poisoned_memory,
    randn,
    threads,
)

pytestmark = NEEDS_LIBRARY

# eps, delta_min, delta_0, lambda_theta: far enough to clip angles.
OPTIONS = (0.01, 0.5, 1.2, 0.4)


@dataclass(frozen=True)
class Case:
    """Sizes; the columns of a modulation are 0 if there is none."""

    batch: int = 2
    length: int = 7
    groups: int = 3
    pairs: int = 2
    reals: int = 1
    rho_columns: int = 1
    theta_columns: int = 1

    def inputs(self, dtype: torch.dtype) -> list[Tensor | None]:
        """The six tensors of the operator."""
        pairs, reals = (self.groups, self.pairs), (self.groups, self.reals)
        tokens = self.batch, self.length
        shapes = (
            *(pairs, pairs, reals, reals),
            *((*tokens, self.rho_columns), (*tokens, self.theta_columns)),
        )
        return [
            (1.5 * randn(*shape)).to(dtype) if shape[-1] or not index else None
            for shape, index in zip(shapes, (0, 0, 0, 0, 1, 2), strict=True)
        ]

    def output_shape(self) -> tuple[int, ...]:
        """Shape of the coefficients."""
        modulated = self.rho_columns or self.theta_columns
        tokens = (self.batch, self.length) if modulated else (1, 1)
        return (*tokens, self.groups, self.reals + 2 * self.pairs)


CASES = {
    'shared': Case(),
    'by group': Case(rho_columns=3, theta_columns=3),
    'mixed': Case(rho_columns=3),
    'radii alone': Case(theta_columns=0),
    'angles alone': Case(rho_columns=0, theta_columns=3),
    'fixed': Case(rho_columns=0, theta_columns=0),
    'one token': Case(1, 1, 12),
    'one group': Case(1, 70, 1, rho_columns=1, theta_columns=1),
    'pairs alone': Case(2, 5, 4, 2, 0),
    'real poles alone': Case(1, 50, 5, 0, 3, rho_columns=5),
    'many groups': Case(1, 9, 40, 3, 2, 40, 40),
    'more groups than a chunk': Case(1, 3, 600, 1, 1, 600, 1),
    'several chunks': Case(1, 700, 2),
    'order 32': Case(1, 20, 2, 13, 6),
}
EACH_CASE = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


@EACH_SET
@EACH_DTYPE
@EACH_CASE
def test_outputs_and_gradients(
    case: Case, dtype: torch.dtype, isa: str
) -> None:
    """Equal to the definition, nothing left unwritten."""
    inputs = case.inputs(dtype)
    grad = randn(*case.output_shape())

    def define(*tensors: Tensor | None) -> tuple[Tensor]:
        return (pole_denominator_reference(*tensors, *OPTIONS),)

    outputs, gradients = expected(define, inputs, (grad,))
    with poisoned_memory():
        q = pole_denominator_fwd(*inputs, *OPTIONS, isa)
        actual = pole_denominator_bwd(grad.to(dtype), *inputs, *OPTIONS, isa)
    assert q.dtype == dtype and q.is_contiguous()
    check((q,), outputs, dtype)
    check(actual, gradients, dtype, True)


@EACH_SET
@EACH_DTYPE
def test_every_angle_is_accurate(dtype: torch.dtype, isa: str) -> None:
    """Cosines within a few units in the last place of 1, over [0, pi]."""
    count = 4000
    hat = torch.linspace(-12, 12, count, dtype=dtype).reshape(1, count, 1)
    hats = hat.reshape(count, 1)
    large = torch.full_like(hats, 60)  # Radius 1 - eps.
    none = hats.new_empty(count, 0)
    inputs = large, hats, none, none, None, None
    q = pole_denominator_fwd(*inputs, *OPTIONS, isa)[0, 0]
    angle = torch.pi * torch.sigmoid(hats.double())
    exact = -2 * 0.99 * torch.cos(angle)
    error = (q[:, :1].double() - exact).abs().max()
    # The angle itself is rounded: half a unit of pi.
    assert error < 5 * torch.finfo(dtype).eps


@EACH_SET
def test_clipped_angles_have_no_gradient(isa: str) -> None:
    """Angles beyond pi stay at pi, and their gradient is zero."""
    hats = torch.tensor([[0.0, 4.0]], dtype=torch.float64)
    none = hats.new_empty(1, 0)
    modulation = hats.new_full((1, 1, 1), 3.0)
    inputs = hats, hats, none, none, None, modulation
    grad = hats.new_ones(1, 1, 1, 4)
    gradients = pole_denominator_bwd(grad, *inputs, *OPTIONS, isa)
    assert gradients[1][0, 0] != 0
    assert gradients[1][0, 1] == 0


@pytest.mark.parametrize('name', ('shared', 'by group'))
def test_strided_and_half_inputs(name: str) -> None:
    """Any strides; half precision is computed in float32."""
    case = CASES[name]
    inputs = case.inputs(torch.float32)
    strided = [torch.stack((t, t), dim=-1)[..., 0] for t in inputs]
    grad = torch.randn(case.output_shape())
    turned = grad.transpose(0, 3).contiguous().transpose(0, 3)
    q = pole_denominator_fwd(*inputs, *OPTIONS)
    gradients = pole_denominator_bwd(grad, *inputs, *OPTIONS)
    assert torch.equal(pole_denominator_fwd(*strided, *OPTIONS), q)
    actual = pole_denominator_bwd(turned, *strided, *OPTIONS)
    for one, other in zip(actual, gradients, strict=True):
        assert torch.equal(one, other)
    half = [t.bfloat16() for t in inputs]
    q = pole_denominator_fwd(*half, *OPTIONS)
    same = pole_denominator_fwd(*(t.float() for t in half), *OPTIONS)
    assert q.dtype == torch.float32 and torch.equal(q, same)
    for gradient in pole_denominator_bwd(grad, *half, *OPTIONS):
        assert gradient.dtype == torch.bfloat16


def test_threads_do_not_matter() -> None:
    """Equal bits with one and two threads."""
    inputs = Case(4, 200, 12, 2, 1, 12, 1).inputs(torch.float32)
    grad = torch.randn(4, 200, 12, 5)
    results = []
    for count in (1, 2):
        with threads(count):
            q = pole_denominator_fwd(*inputs, *OPTIONS)
            gradients = pole_denominator_bwd(grad, *inputs, *OPTIONS)
            results.append((q, *gradients))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@EACH_SET
def test_nan_stays_in_its_token(isa: str) -> None:
    """A NaN modulation shows in its token, and nowhere else."""
    inputs = Case(1, 30, 3, 2, 1, 3, 3).inputs(torch.float32)
    clean = pole_denominator_fwd(*inputs, *OPTIONS, isa)
    hit = torch.zeros(1, 30, 3, dtype=torch.bool)
    hit[0, 11, 2] = True
    for index in (4, 5):
        bad = list(inputs)
        bad[index] = inputs[index].masked_fill(hit, float('nan'))
        q = pole_denominator_fwd(*bad, *OPTIONS, isa)
        assert q[hit].isnan().any()
        assert torch.equal(q[~hit], clean[~hit])


def test_order_is_limited() -> None:
    """More coefficients than the kernel serves are refused."""
    pairs = torch.zeros(1, MAX_ORDER // 2)
    reals = torch.zeros(1, 1)
    run = partial(pole_denominator_fwd, pairs, pairs, reals, reals)
    with pytest.raises(ValueError, match='33 coefficients'):
        run(None, None, *OPTIONS)
