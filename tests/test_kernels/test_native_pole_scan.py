"""The pole scan in C against the definition, on every instruction set."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmssm.kernels.cpu.pole_scan import (
    MAX_ORDER,
    pole_scan_bwd,
    pole_scan_fwd,
)
from mmssm.ops.pole_scan.reference import pole_scan_reference
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
    """Sizes and options of a scan."""

    batch: int = 2
    length: int = 37
    channels: int = 96
    groups: int = 3
    order: int = 5
    skip: bool = False
    gate: bool = False
    history: bool = False
    reverse: bool = False
    layout: str = 'contiguous'

    def inputs(self) -> list[Tensor | None]:
        """eta, q, x, D, z and the initial history, in float64."""
        shape = (self.batch, self.length, self.channels)
        eta, x, z = (laid_out(randn(*shape), self.layout) for _ in range(3))
        q = randn(self.batch, self.length, self.groups, self.order)
        return [
            eta,
            q * 0.3 / self.order**0.5,
            x if self.skip else None,
            randn(self.channels) if self.skip else None,
            z if self.gate else None,
            randn(self.batch, self.order, self.channels)
            if self.history
            else None,
        ]

    def define(
        self,
        eta: Tensor,
        q: Tensor,
        x: Tensor | None,
        D: Tensor | None,
        z: Tensor | None,
        history: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Output and final history by the definition."""
        if history is None:
            history = eta.new_zeros(self.batch, self.order, self.channels)
        out, last = pole_scan_reference(eta, q, history, self.reverse)
        if x is not None:
            out = out + D * x
        return (out if z is None else out * F.silu(z)), last


ALL = dict(skip=True, gate=True, history=True)
CASES = {
    'plain': Case(),
    'all': Case(**ALL),
    'all reverse': Case(**ALL, reverse=True),
    'skip': Case(skip=True, history=True),
    'gate': Case(gate=True, reverse=True),
    'one token': Case(length=1, channels=20, groups=2, **ALL),
    'order above length': Case(1, 3, 7, 1, 5, **ALL, reverse=True),
    'wide group': Case(1, 70, 300, 1, 2, **ALL),
    'uneven slabs': Case(1, 34, 1530, 6, 2, history=True),
    'many small groups': Case(1, 34, 390, 130, 2, **ALL),
    'padding in each group': Case(2, 33, 30, 3, 1, skip=True, gate=True),
    'order 3': Case(1, 40, 64, 2, 3, history=True),
    'order 8': Case(1, 40, 66, 2, 8, **ALL),
    'order 11': Case(1, 45, 66, 2, 11, **ALL, reverse=True),
    'order 32': Case(1, 65, 40, 1, 32, history=True),
    **{
        f'{layout} reverse': Case(**ALL, layout=layout, reverse=True)
        for layout in LAYOUTS[1:]
    },
    'transposed': Case(1, 50, 45, 1, 4, **ALL, layout='transposed'),
}
EACH_CASE = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


def run_backward(
    case: Case,
    inputs: list[Tensor | None],
    grads: tuple[Tensor, Tensor],
    isa: str | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients in the order of `Case.inputs`."""
    out, _, y = pole_scan_fwd(*inputs, case.reverse, isa)
    y = y if y.numel() else out
    dtype = inputs[0].dtype
    return pole_scan_bwd(*grads, *inputs[1:], y, dtype, case.reverse, isa)


@EACH_SET
@EACH_DTYPE
@EACH_CASE
def test_outputs_and_gradients(
    case: Case, dtype: torch.dtype, isa: str
) -> None:
    """Equal to the definition, nothing left unwritten."""
    inputs = in_dtype(case.inputs(), dtype)
    shapes = (inputs[0].shape, (case.batch, case.order, case.channels))
    grads = tuple(randn(*shape) for shape in shapes)
    outputs, gradients = expected(case.define, inputs, grads)
    grads = [
        laid_out(grads[0].to(dtype), case.layout)
        if case.layout != 'expanded'
        else grads[0].to(dtype),
        grads[1].to(dtype),
    ]
    with poisoned_memory():
        actual = pole_scan_fwd(*inputs, case.reverse, isa)
        check(actual[:2], outputs, dtype)
        check(run_backward(case, inputs, grads, isa), gradients, dtype, True)


@EACH_CASE
def test_layout_is_kept(case: Case) -> None:
    """Output and gradients lie in memory as torch would lay them."""
    inputs = in_dtype(case.inputs(), torch.float32)
    out, last, _ = pole_scan_fwd(*inputs, case.reverse)
    assert out.stride() == torch.empty_like(inputs[0]).stride()
    assert last.is_contiguous()
    grads = torch.randn_like(out), torch.randn_like(last)
    deta = run_backward(case, inputs, grads)[0]
    assert deta.stride() == out.stride()


@pytest.mark.parametrize(
    'dtype', (torch.float16, torch.bfloat16), ids=('float16', 'bfloat16')
)
@pytest.mark.parametrize('name', ('plain', 'all reverse'))
def test_half(name: str, dtype: torch.dtype) -> None:
    """Half precision outside, float32 inside: q, D and histories stay."""
    case = CASES[name]
    inputs = in_dtype(case.inputs(), torch.float32)
    for index in (0, 2, 4):
        if inputs[index] is not None:
            inputs[index] = inputs[index].to(dtype)
    grads = randn(*inputs[0].shape).to(dtype), randn(2, 5, 96).float()
    outputs, gradients = expected(
        case.define, inputs, tuple(g.double() for g in grads)
    )
    out, last, y = pole_scan_fwd(*inputs, case.reverse)
    assert (out.dtype, last.dtype, y.dtype) == (
        dtype,
        torch.float32,
        torch.float32,
    )
    check((out,), outputs[:1], dtype)
    check((last,), outputs[1:], torch.float32)
    actual = run_backward(case, inputs, grads)
    for gradient, tensor in zip(actual, inputs, strict=True):
        assert tensor is None or gradient.dtype == tensor.dtype
    check(actual, gradients, dtype, True)


@pytest.mark.parametrize('channels', (300, 320, 1030))
def test_threads_do_not_matter(channels: int) -> None:
    """Equal bits with one and two threads."""
    case = Case(2, 64, channels, 2, 5, **ALL)
    inputs = in_dtype(case.inputs(), torch.float32)
    grads = torch.randn(2, 64, channels), torch.randn(2, 5, channels)
    results = []
    for count in (1, 2):
        with threads(count):
            forward = pole_scan_fwd(*inputs, case.reverse)
            results.append((*forward, *run_backward(case, inputs, grads)))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@EACH_SET
def test_chunks_are_the_whole(isa: str) -> None:
    """A history carried from chunk to chunk changes no bit."""
    case = Case(1, 50, 48, 1, 5)
    eta, q, *_ = in_dtype(case.inputs(), torch.float32)
    whole, last, _ = pole_scan_fwd(eta, q, *[None] * 4, False, isa)
    parts, history = [], None
    for begin, end in ((0, 1), (1, 3), (3, 36), (36, 50)):
        chunk = eta[:, begin:end], q[:, begin:end]
        part, history, _ = pole_scan_fwd(
            *chunk, None, None, None, history, False, isa
        )
        parts.append(part)
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert torch.equal(history, last)


@EACH_SET
@pytest.mark.parametrize('bad', (float('inf'), float('nan')))
def test_bad_channel_stays_alone(bad: float, isa: str) -> None:
    """Inf and NaN show where they are, and nowhere else."""
    case = Case(1, 20, 40, 2, 3, gate=True)
    inputs = in_dtype(case.inputs(), torch.float32)
    clean = pole_scan_fwd(*inputs, False, isa)[0]
    inputs[0][0, 7, 33] = bad
    out = pole_scan_fwd(*inputs, False, isa)[0]
    others = torch.arange(40) != 33
    assert torch.equal(out[..., others], clean[..., others])
    assert torch.equal(out[:, :7], clean[:, :7])
    assert not out[:, 7:, 33].isfinite().any()


@EACH_SET
def test_infinite_coefficient_meets_no_padding(isa: str) -> None:
    """0 times infinity in an unused lane would make dq NaN."""
    eta = torch.ones(1, 3, 3)
    q = torch.zeros(1, 3, 1, 1)
    q[0, 2] = float('inf')
    out, last, _ = pole_scan_fwd(eta, q, *[None] * 4, False, isa)
    dq = pole_scan_bwd(
        torch.ones_like(out),
        torch.zeros_like(last),
        *(q, None, None, None, None, out, torch.float32, False, isa),
    )[1]
    assert dq.flatten().tolist()[1:] == [float('inf'), -3]


def test_order_is_limited() -> None:
    """An order that the kernel does not serve is refused."""
    q = torch.zeros(1, 2, 1, MAX_ORDER + 1)
    with pytest.raises(ValueError, match='order 33'):
        pole_scan_fwd(torch.zeros(1, 2, 4), q, *[None] * 4, False)
