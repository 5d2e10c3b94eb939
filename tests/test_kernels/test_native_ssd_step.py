"""One frame of the SSD recurrence in C against the definition."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mmssm.kernels.cpu.ssd_step import ssd_step_fwd
from mmssm.ops import ssd_step
from tests.test_kernels.native_checks import (
    EACH_DTYPE,
    EACH_SET,
    NEEDS_LIBRARY,
    check,
    poisoned_memory,
    randn,
    threads,
)

pytestmark = NEEDS_LIBRARY


@dataclass(frozen=True)
class Case:
    """Sizes and options of a step; skip_axes is 0 without a skip."""

    batch: int = 2
    heads: int = 4
    headdim: int = 16
    state: int = 32
    groups: int = 1
    skip_axes: int = 1
    gate: bool = True
    bias: bool = True
    softplus: bool = True
    strided: bool = False

    def inputs(self) -> list[Tensor | None]:
        """Arguments of `ssd_step_fwd` up to ``dt_bias``, in float64."""
        channels = self.batch, self.heads, self.headdim
        matrix = self.batch, self.groups, self.state
        skips = (None, randn(self.heads), randn(self.heads, self.headdim))
        inputs = [
            *(randn(*channels, self.state), randn(*channels)),
            *(randn(self.batch, self.heads), -randn(self.heads).abs()),
            *(randn(*matrix), randn(*matrix), skips[self.skip_axes]),
            randn(*channels) if self.gate else None,
            randn(self.heads) if self.bias else None,
        ]
        if self.strided:
            return [None if t is None else _turned(t) for t in inputs]
        return inputs


def _turned(tensor: Tensor) -> Tensor:
    """Same values, first axis innermost in memory."""
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


CASES = {
    'all': Case(),
    'plain': Case(skip_axes=0, gate=False, bias=False, softplus=False),
    'skip by channel': Case(skip_axes=2, gate=False),
    'gate without skip': Case(skip_axes=0, softplus=False),
    'odd sizes': Case(1, 6, 13, 33, 3),
    'small state': Case(2, 4, 7, 5, 2, softplus=False),
    'one of each': Case(1, 1, 1, 1),
    'strided': Case(2, 6, 13, 20, 2, 2, strided=True),
}
EACH_CASE = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


@EACH_SET
@EACH_DTYPE
@EACH_CASE
def test_output_and_state(case: Case, dtype: torch.dtype, isa: str) -> None:
    """Equal to the definition, nothing left unwritten."""
    inputs = [None if t is None else t.to(dtype) for t in case.inputs()]
    wanted = ssd_step(
        *(None if t is None else t.double() for t in inputs),
        case.softplus,
        backend='reference',
    )
    before = inputs[0].clone()
    with poisoned_memory():
        actual = ssd_step_fwd(*inputs, case.softplus, isa)
    check(actual, wanted, dtype)
    assert actual[0].stride() == torch.empty_like(inputs[1]).stride()
    assert actual[1].is_contiguous()
    assert torch.equal(inputs[0], before)


@pytest.mark.parametrize(
    'dtype', (torch.float16, torch.bfloat16), ids=('float16', 'bfloat16')
)
def test_half(dtype: torch.dtype) -> None:
    """Half precision outside; the state is float32."""
    inputs = [t.float() for t in Case().inputs()]
    for index in (1, 2, 4, 5, 7):
        inputs[index] = inputs[index].to(dtype)
    wanted = ssd_step(*(t.double() for t in inputs), True, backend='reference')
    y, state = ssd_step_fwd(*inputs, True)
    assert (y.dtype, state.dtype) == (dtype, torch.float32)
    check((y,), wanted[:1], dtype)
    check((state,), wanted[1:], torch.float32)


def test_threads_do_not_matter() -> None:
    """Equal bits with one and two threads."""
    inputs = [t.float() for t in Case(2, 12, 40, 64).inputs()]
    results = []
    for count in (1, 2):
        with threads(count):
            results.append(ssd_step_fwd(*inputs, True))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@EACH_SET
@pytest.mark.parametrize('bad', (float('inf'), float('nan')))
def test_bad_channel_stays_alone(bad: float, isa: str) -> None:
    """Inf and NaN show in their channel, and nowhere else."""
    case = Case(1, 2, 13, 21, skip_axes=0, gate=False)
    inputs = [None if t is None else t.float() for t in case.inputs()]
    clean = ssd_step_fwd(*inputs, True, isa)
    inputs[1][0, 1, 12] = bad
    actual = ssd_step_fwd(*inputs, True, isa)
    others = torch.ones(1, 2, 13, dtype=torch.bool)
    others[0, 1, 12] = False
    for result, before in zip(actual, clean, strict=True):
        assert torch.equal(result[others], before[others])
        assert not result[~others].isfinite().any()
