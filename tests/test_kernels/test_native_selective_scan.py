"""The selective scan in C against the definition, on every instruction set."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mmssm.kernels.cpu.selective_scan import (
    selective_scan_bwd,
    selective_scan_fwd,
)
from mmssm.ops.selective_scan.reference import selective_scan_reference
from mmssm.ops.selective_scan.step_size import step_size
from mmssm.ops.skip_and_gate import skip_and_gate
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
    dim: int = 40
    length: int = 70
    state: int = 5
    groups: int = 1
    skip: bool = False
    gate: bool = False
    bias: bool = False
    carry: bool = False
    softplus: bool = False
    reverse: bool = False
    layout: str = 'contiguous'

    def inputs(self) -> list[Tensor | None]:
        """u, delta, A, B, C, D, z, delta_bias and the initial state."""
        shape = (self.batch, self.dim, self.length)
        u, delta, z = (laid_out(randn(*shape), self.layout) for _ in range(3))
        if not self.softplus:
            # Negative steps would let the state grow without bound.
            delta = delta.abs()
        B, C = (
            randn(self.batch, self.groups, self.state, self.length)
            for _ in range(2)
        )
        if self.layout == 'transposed':
            B, C = (t.mT.contiguous().mT for t in (B, C))
        return [
            u,
            delta,
            -randn(self.dim, self.state).exp(),
            B,
            C,
            randn(self.dim) if self.skip else None,
            z if self.gate else None,
            randn(self.dim).abs() if self.bias else None,
            randn(self.batch, self.dim, self.state) if self.carry else None,
        ]

    def define(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        delta_bias: Tensor | None,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Output and final state by the definition."""
        if state is None:
            state = u.new_zeros(self.batch, self.dim, self.state)
        dt = step_size(delta, delta_bias, self.softplus)
        y, state = selective_scan_reference(
            u, dt, A, B, C, state, self.reverse
        )
        return skip_and_gate(y, u, D, z, channel_dim=-2), state

    def forward(
        self, inputs: list[Tensor | None], isa: str | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, final state and checkpoints of the kernel."""
        return selective_scan_fwd(*inputs, self.softplus, self.reverse, isa)

    def backward(
        self,
        inputs: list[Tensor | None],
        grads: tuple[Tensor, ...],
        isa: str | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Gradients in the order of `inputs`."""
        checkpoints = self.forward(inputs, isa)[2]
        gradients = selective_scan_bwd(
            *grads,
            *inputs[:-1],
            checkpoints,
            self.softplus,
            self.reverse,
            isa,
        )
        return gradients if self.carry else (*gradients[:-1], None)

    def grads(self) -> tuple[Tensor, Tensor]:
        """Gradients of the outputs."""
        y = randn(self.batch, self.dim, self.length)
        return y, randn(self.batch, self.dim, self.state)


ALL = dict(skip=True, gate=True, bias=True, carry=True, softplus=True)
CASES = {
    'plain': Case(),
    'all': Case(**ALL),
    'all reverse': Case(**ALL, reverse=True),
    'gate without skip': Case(gate=True, carry=True),
    'skip without gate': Case(skip=True, softplus=True, reverse=True),
    'bias without softplus': Case(bias=True),
    'one of all': Case(1, 1, 1, 1, **ALL),
    'one token': Case(2, 33, 1, 3, **ALL, reverse=True),
    'one chunk': Case(1, 16, 64, 16, **ALL),
    'chunk and a token': Case(1, 17, 65, 2, **ALL, reverse=True),
    'three chunks': Case(1, 20, 131, 3, **ALL),
    'several items': Case(2, 150, 9, 4, **ALL, reverse=True),
    'items in groups': Case(1, 160, 10, 4, 2, **ALL),
    'padding in each group': Case(2, 30, 67, 3, 6, **ALL),
    'group of one channel': Case(1, 6, 21, 2, 6, **ALL),
    'large state': Case(1, 4, 5, 256, **ALL),
    'odd state': Case(1, 20, 66, 37, 2, carry=True),
    **{
        f'{layout} reverse': Case(**ALL, layout=layout, reverse=True)
        for layout in LAYOUTS[1:]
    },
    'transposed': Case(1, 45, 70, 4, 3, **ALL, layout='transposed'),
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
    grads = case.grads()
    outputs, gradients = expected(case.define, inputs, grads)
    grads = tuple(grad.to(dtype) for grad in grads)
    with poisoned_memory():
        actual = case.forward(inputs, isa)
        check(actual[:2], outputs, dtype)
        check(case.backward(inputs, grads, isa), gradients, dtype, True)


@EACH_CASE
def test_checkpoints_are_states(case: Case) -> None:
    """Each one is the final state of the chunks before it."""
    inputs = case.inputs()
    _, last, checkpoints = case.forward(inputs)
    chunks = -(-case.length // 64)
    assert checkpoints.shape == (case.batch, chunks, *last.shape[1:])
    for chunk in range(chunks):
        state = inputs[-1]
        if chunk:
            # In order of processing: the first tokens, or the last ones.
            size = 64 * chunk
            first = case.length - size if case.reverse else 0
            cut = [
                t if i in (2, 5, 7, 8) or t is None
                else t.narrow(-1, first, size)
                for i, t in enumerate(inputs)
            ]  # fmt: skip
            _, state, _ = case.forward(cut)
        elif state is None:
            state = torch.zeros_like(last)
        assert torch.equal(checkpoints[:, chunk], state)


@EACH_CASE
def test_layout_is_kept(case: Case) -> None:
    """Results lie in memory as torch would lay them."""
    inputs = in_dtype(case.inputs(), torch.float32)
    y, last, checkpoints = case.forward(inputs)
    assert y.stride() == torch.empty_like(inputs[0]).stride()
    assert last.is_contiguous() and checkpoints.is_contiguous()
    grads = torch.randn_like(y), torch.randn_like(last)
    gradients = case.backward(inputs, grads)
    for gradient, tensor in zip(gradients, inputs, strict=True):
        if tensor is not None:
            assert gradient.stride() == torch.empty_like(tensor).stride()


@pytest.mark.parametrize(
    'dtype', (torch.float16, torch.bfloat16), ids=('float16', 'bfloat16')
)
@pytest.mark.parametrize('name', ('plain', 'all reverse'))
def test_half(name: str, dtype: torch.dtype) -> None:
    """Half precision outside, float32 inside: A, D and the bias stay."""
    case = CASES[name]
    inputs = in_dtype(case.inputs(), torch.float32)
    for index in (0, 1, 3, 4, 6):
        if inputs[index] is not None:
            inputs[index] = inputs[index].to(dtype)
    grads = case.grads()
    grads = grads[0].to(dtype), grads[1].float()
    outputs, gradients = expected(
        case.define, inputs, tuple(grad.double() for grad in grads)
    )
    y, last, checkpoints = case.forward(inputs)
    assert (y.dtype, last.dtype, checkpoints.dtype) == (
        dtype,
        torch.float32,
        torch.float32,
    )
    check((y,), outputs[:1], dtype)
    check((last,), outputs[1:], torch.float32)
    actual = case.backward(inputs, grads)
    for gradient, tensor in zip(actual, inputs, strict=True):
        assert tensor is None or gradient.dtype == tensor.dtype
    check(actual, gradients, dtype, True)


@EACH_SET
def test_threads_do_not_matter(isa: str) -> None:
    """Equal bits with one, two and three threads."""
    case = Case(2, 150, 70, 4, **ALL)
    inputs = in_dtype(case.inputs(), torch.float32)
    grads = tuple(grad.float() for grad in case.grads())
    results = []
    for count in (1, 2, 3):
        with threads(count):
            forward = case.forward(inputs, isa)
            results.append((*forward, *case.backward(inputs, grads, isa)))
    for one, *others in zip(*results, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_large_steps() -> None:
    """Beyond 20 softplus is the identity; exp reaches 0 and stays there."""
    case = Case(1, 16, 8, 2, softplus=True)
    inputs = case.inputs()
    steps = torch.tensor([-800, -30, 19.9, 20, 20.1, 90, 800, 1e6])
    inputs[1] = steps.double().expand(1, 16, 8)
    for dtype in (torch.float64, torch.float32):
        data = in_dtype(inputs, dtype)
        grads = case.grads()
        outputs, gradients = expected(case.define, data, grads)
        check(case.forward(data)[:2], outputs, dtype)
        grads = tuple(grad.to(dtype) for grad in grads)
        check(case.backward(data, grads), gradients, dtype, True)


@EACH_SET
@EACH_DTYPE
@pytest.mark.parametrize('bad', (float('inf'), float('nan')))
def test_bad_channel_stays_alone(
    bad: float, dtype: torch.dtype, isa: str
) -> None:
    """Inf and NaN show where they are, and nowhere else."""
    case = Case(1, 40, 80, 3, **ALL)
    inputs = in_dtype(case.inputs(), dtype)
    clean = case.forward(inputs, isa)[0]
    inputs[0][0, 33, 7] = bad
    y = case.forward(inputs, isa)[0]
    others = torch.arange(40) != 33
    assert torch.equal(y[:, others], clean[:, others])
    assert torch.equal(y[..., :7], clean[..., :7])
    assert not y[0, 33, 7].isfinite()


@EACH_SET
@EACH_DTYPE
def test_divergence_shows(dtype: torch.dtype, isa: str) -> None:
    """A growing state overflows as in the definition."""
    case = Case(1, 16, 70, 2)
    inputs = in_dtype(case.inputs(), dtype)
    inputs[2] = inputs[2].abs() * 50
    y, last, _ = case.forward(inputs, isa)
    wanted, last_wanted = case.define(*inputs)
    assert not wanted.isfinite().all()
    for actual, reference in ((y, wanted), (last, last_wanted)):
        assert torch.equal(actual.isnan(), reference.isnan())
        assert torch.equal(actual.isinf(), reference.isinf())


@EACH_SET
@EACH_DTYPE
def test_decay_over_the_whole_range(dtype: torch.dtype, isa: str) -> None:
    """Decays are exp(dt A): 1 for a step of 0, then 0 and infinity."""
    info = torch.finfo(dtype)
    ends = [0.0, -float('inf'), float('inf'), float('nan'), -1e5, 1e5]
    low, high = math.log(info.tiny) + 1, math.log(info.max) - 1e-3
    spread = torch.linspace(low, high, 1018, dtype=dtype)
    exponents = torch.cat([torch.tensor(ends, dtype=dtype), spread])
    u = torch.zeros(1, 1024, 1, dtype=dtype)
    zero = torch.zeros(1, 1, 1, 1, dtype=dtype)
    one = torch.ones_like(u)
    inputs = [u, one, exponents[:, None], zero, zero, None, None, None, one]
    last = Case(1, 1, 1024, 1).forward(inputs, isa)[1].flatten()
    assert last[:3].tolist() == [1.0, 0.0, float('inf')]
    assert last[3].isnan()
    assert last[4:6].tolist() == [0.0, float('inf')]
    wanted = exponents[6:].double().exp()
    # An exponent x is rounded to a relative eps / 2, twice.
    bound = info.eps * (2 + spread.double().abs())
    assert ((last[6:] / wanted - 1).abs() <= bound).all()


@EACH_SET
def test_infinite_matrix_meets_no_padding(isa: str) -> None:
    """0 times infinity in a lane without a channel would make dC NaN."""
    case = Case(1, 3, 4, 1)
    u, one = torch.ones(1, 3, 4), torch.ones(1, 1, 1, 4)
    B = one.clone()
    B[..., 2] = float('inf')
    inputs = [u, u, -torch.ones(3, 1), B, one, None, None, None, None]
    gradients = case.backward(inputs, (u, torch.zeros(1, 3, 1)), isa)
    dC = gradients[4].flatten()
    assert dC[:2].isfinite().all()
    assert dC[2:].tolist() == [float('inf')] * 2
