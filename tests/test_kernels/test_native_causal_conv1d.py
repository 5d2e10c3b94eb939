"""The causal convolution in C against the definition."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmssm.kernels.cpu.causal_conv1d import (
    MAX_WIDTH,
    causal_conv1d_bwd,
    causal_conv1d_fwd,
)
from tests.test_kernels.native_checks import (
    EACH_DTYPE,
    EACH_SET,
    LAYOUTS,
    NEEDS_LIBRARY,
    check,
    expected,
    in_dtype,
    laid_out,
    poisoned_memory,
    randn,
    threads,
)

pytestmark = NEEDS_LIBRARY


@dataclass(frozen=True)
class Case:
    """Sizes and options of a convolution."""

    batch: int = 2
    dim: int = 37
    length: int = 70
    width: int = 4
    silu: bool = True
    bias: bool = True
    history: bool = True
    reverse: bool = False
    layout: str = 'contiguous'

    def inputs(self) -> list[Tensor | None]:
        """x, weight, bias and initial states, in float64."""
        return [
            laid_out(randn(self.batch, self.dim, self.length), self.layout),
            randn(self.dim, self.width),
            randn(self.dim) if self.bias else None,
            randn(self.batch, self.dim, self.width - 1)
            if self.history
            else None,
        ]

    def define(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        initial_states: Tensor | None,
    ) -> tuple[Tensor]:
        """One product per tap, time turned around for reverse."""
        if initial_states is None:
            initial_states = x.new_zeros(self.batch, self.dim, self.width - 1)
        x = x.flip(-1) if self.reverse else x
        frames = torch.cat((initial_states, x), dim=-1)
        y = sum(
            weight[:, k, None] * frames[..., k : k + self.length]
            for k in range(self.width)
        )
        y = y if bias is None else y + bias[:, None]
        y = F.silu(y) if self.silu else y
        return (y.flip(-1) if self.reverse else y,)


CASES = {
    'silu': Case(),
    'reverse': Case(reverse=True),
    'no silu': Case(silu=False),
    'weight alone': Case(silu=False, bias=False, history=False),
    'no history': Case(history=False, reverse=True),
    'no bias': Case(bias=False),
    'one frame': Case(dim=16, length=1),
    'width above length': Case(dim=7, length=3, width=5, reverse=True),
    'spans of time': Case(1, 20, 600, 3),
    'spans of time reverse': Case(1, 20, 513, 8, reverse=True),
    'width 1': Case(1, 3, 20, 1),
    'width 2': Case(1, 40, 33, 2, layout='transposed'),
    'width 3': Case(1, 40, 33, 3, layout='transposed', reverse=True),
    'width 32': Case(1, 18, 90, 32),
    'width 32 channels-last': Case(1, 50, 90, 32, layout='transposed'),
    'one frame channels-last': Case(2, 70, 1, layout='transposed'),
    'short channels-last': Case(2, 70, 3, 6, layout='transposed'),
    **{layout: Case(layout=layout) for layout in LAYOUTS[1:]},
    **{
        f'{layout} reverse': Case(layout=layout, reverse=True)
        for layout in LAYOUTS[1:]
    },
    'channels-last weight alone': Case(
        silu=False, bias=False, history=False, layout='transposed'
    ),
}
EACH_CASE = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


@EACH_SET
@EACH_DTYPE
@EACH_CASE
def test_outputs_and_gradients(
    case: Case, dtype: torch.dtype, isa: str
) -> None:
    """Equal to the definition, nothing left unwritten."""
    inputs = in_dtype(case.inputs(), dtype)
    grad = randn(*inputs[0].shape)
    outputs, gradients = expected(case.define, inputs, (grad,))
    options = case.silu, case.reverse, isa
    if case.layout != 'expanded':
        grad = laid_out(grad, case.layout)
    (grad,) = in_dtype([grad], dtype)
    with poisoned_memory():
        y = causal_conv1d_fwd(*inputs, *options)
        check((y,), outputs, dtype)
        actual = causal_conv1d_bwd(grad, *inputs, *options)
    if case.width == 1:
        assert actual[3].shape == (case.batch, case.dim, 0)
    check(actual, gradients, dtype, True)


@EACH_CASE
def test_layout_is_kept(case: Case) -> None:
    """Output and gradient lie in memory as torch would lay them."""
    inputs = in_dtype(case.inputs(), torch.float32)
    options = case.silu, case.reverse
    y = causal_conv1d_fwd(*inputs, *options)
    dx = causal_conv1d_bwd(torch.ones_like(y), *inputs, *options)[0]
    like = torch.empty_like(inputs[0])
    assert y.stride() == dx.stride() == like.stride()


@pytest.mark.parametrize(
    'dtype', (torch.float16, torch.bfloat16), ids=('float16', 'bfloat16')
)
@pytest.mark.parametrize('layout', ('contiguous', 'transposed'))
def test_half(layout: str, dtype: torch.dtype) -> None:
    """Half precision outside, float32 inside; parameters stay float32."""
    case = Case(layout=layout)
    inputs = in_dtype(case.inputs(), torch.float32)
    inputs[0] = inputs[0].to(dtype)
    grad = randn(*inputs[0].shape).to(dtype)
    outputs, gradients = expected(case.define, inputs, (grad.double(),))
    y = causal_conv1d_fwd(*inputs, True, False)
    assert y.dtype == dtype
    check((y,), outputs, dtype)
    actual = causal_conv1d_bwd(grad, *inputs, True, False)
    for gradient, tensor in zip(actual, inputs, strict=True):
        assert gradient.dtype == tensor.dtype
    check(actual[:1], gradients[:1], dtype, True)
    check(actual[1:], gradients[1:], torch.float32, True)


@pytest.mark.parametrize('layout', ('contiguous', 'transposed'))
def test_threads_do_not_matter(layout: str) -> None:
    """Equal bits with one and two threads."""
    case = Case(2, 100, 200, layout=layout)
    inputs = in_dtype(case.inputs(), torch.float32)
    grad = torch.randn_like(inputs[0])
    results = []
    for count in (1, 2):
        with threads(count):
            y = causal_conv1d_fwd(*inputs, True, False)
            grads = causal_conv1d_bwd(grad, *inputs, True, False)
            results.append((y, *grads))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@EACH_SET
@pytest.mark.parametrize('layout', ('contiguous', 'transposed'))
@pytest.mark.parametrize('bad', (float('inf'), float('nan')))
def test_bad_frame_stays_in_its_window(
    bad: float, layout: str, isa: str
) -> None:
    """Inf and NaN show where the filter reaches them, and nowhere else."""
    case = Case(1, 40, 30, silu=False, layout=layout)
    inputs = in_dtype(case.inputs(), torch.float32)
    clean = causal_conv1d_fwd(*inputs, False, False, isa)
    inputs[0][0, 33, 28] = bad
    y = causal_conv1d_fwd(*inputs, False, False, isa)
    hit = torch.zeros(1, 40, 30, dtype=torch.bool)
    hit[0, 33, 28:] = True
    assert torch.equal(y[~hit], clean[~hit])
    assert not y[hit].isfinite().any()


@EACH_SET
@pytest.mark.parametrize('layout', ('contiguous', 'transposed'))
def test_bad_frame_in_the_gradient_of_the_filter(
    layout: str, isa: str
) -> None:
    """Infinite products add up to infinity, not to NaN."""
    x = laid_out(torch.ones(1, 19, 21), layout)
    x[0, 17, 20] = float('inf')
    grad = laid_out(torch.ones(1, 19, 21), layout)
    weight = torch.ones(19, 3)
    dweight = causal_conv1d_bwd(
        grad, x, weight, None, None, False, False, isa
    )[1]
    assert dweight[17].tolist() == [19, 20, float('inf')]
    assert dweight[16].tolist() == [19, 20, 21]


def test_width_is_limited() -> None:
    """A width that the kernel does not serve is refused."""
    weight = torch.zeros(4, MAX_WIDTH + 1)
    with pytest.raises(ValueError, match='width 33'):
        causal_conv1d_fwd(
            torch.zeros(1, 4, 5), weight, None, None, False, False
        )
