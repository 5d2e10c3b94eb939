"""The SSD recurrence in C against the definition, on every set."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mmssm.kernels.cpu.ssd_chunk_scan import (
    ssd_chunk_scan_bwd,
    ssd_chunk_scan_fwd,
)
from mmssm.ops import ssd_chunk_scan
from tests.test_kernels.native_checks import (
    EACH_DTYPE,
    EACH_SET,
    NEEDS_LIBRARY,
    check,
    expected,
    in_dtype,
    poisoned_memory,
    randn,
    threads,
)

pytestmark = NEEDS_LIBRARY


@dataclass(frozen=True)
class Case:
    """Sizes and options of a scan; skip_axes is 0 without a skip."""

    batch: int = 2
    length: int = 37
    heads: int = 4
    headdim: int = 10
    state: int = 5
    groups: int = 2
    chunk_size: int = 16
    skip_axes: int = 0
    gate: bool = False
    bias: bool = False
    carry: bool = False
    softplus: bool = False
    packed: tuple[int, ...] = ()
    swapped: bool = False

    def inputs(self) -> list[Tensor | None]:
        """Tensors in the order of the kernel, without ``seq_idx``."""
        frames = self.batch, self.length
        channels = *frames, self.heads, self.headdim
        skips = (None, randn(self.heads), randn(self.heads, self.headdim))
        # Negative steps would let the state grow without bound.
        dt = randn(*frames, self.heads)
        inputs = [
            *(randn(*channels), dt if self.softplus else dt.abs()),
            -randn(self.heads).abs(),
            *(randn(*frames, self.groups, self.state) for _ in range(2)),
            skips[self.skip_axes],
            randn(*channels) if self.gate else None,
            randn(self.heads).abs() if self.bias else None,
            randn(self.batch, self.heads, self.headdim, self.state)
            if self.carry
            else None,
        ]
        if self.swapped:
            return [None if t is None else _turned(t) for t in inputs]
        return inputs

    def sequences(self) -> Tensor | None:
        """``seq_idx``; the order of the videos differs from row to row."""
        if not self.packed:
            return None
        numbers = torch.arange(len(self.packed), dtype=torch.int32)
        row = numbers.repeat_interleave(torch.tensor(self.packed))
        rows = [row.flip(0) if i % 2 else row for i in range(self.batch)]
        return torch.stack(rows)

    def define(self, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output and final state by the definition."""
        x, dt, A, B, C, D, z, dt_bias, state = inputs
        return ssd_chunk_scan(
            *(x, dt, A, B, C, self.chunk_size, D, z, dt_bias, state),
            seq_idx=self.sequences(),
            dt_softplus=self.softplus,
            return_final_states=True,
            backend='reference',
        )

    def forward(
        self, inputs: list[Tensor | None], isa: str | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, final state and the states before the chunks."""
        *inputs, state = inputs
        return ssd_chunk_scan_fwd(
            *(*inputs, self.sequences(), state),
            *(self.chunk_size, self.softplus, isa),
        )

    def backward(
        self,
        inputs: list[Tensor | None],
        grads: tuple[Tensor, ...],
        isa: str | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Gradients in the order of `inputs`."""
        chunk_states = self.forward(inputs, isa)[2]
        *inputs, state = inputs
        return ssd_chunk_scan_bwd(
            *(*grads, *inputs, self.sequences(), state, chunk_states),
            *(self.chunk_size, self.softplus, isa),
        )

    def grads(self) -> tuple[Tensor, Tensor]:
        """Gradients of the outputs."""
        y = randn(self.batch, self.length, self.heads, self.headdim)
        state = randn(self.batch, self.heads, self.headdim, self.state)
        return y, state


def _turned(tensor: Tensor) -> Tensor:
    """Same values, first axis innermost in memory."""
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


ALL = dict(skip_axes=1, gate=True, bias=True, carry=True, softplus=True)
CASES = {
    'plain': Case(),
    'all': Case(**ALL),
    'skip by channel': Case(skip_axes=2, softplus=True),
    'gate without skip': Case(gate=True, carry=True),
    'skip and gate by channel': Case(skip_axes=2, gate=True),
    'bias without softplus': Case(bias=True),
    'carry alone': Case(carry=True, softplus=True),
    'one of all': Case(1, 1, 1, 1, 1, 1, 1, **ALL),
    'one frame': Case(2, 1, 3, 17, 4, 1, 64, **ALL),
    'one chunk': Case(1, 64, 2, 16, 16, 1, 64, **ALL),
    'chunk and a frame': Case(1, 65, 2, 16, 16, 1, 256, **ALL),
    'three chunks': Case(1, 131, 2, 20, 33, 1, 64, **ALL),
    'several items': Case(2, 20, 10, 6, 9, 1, **ALL),
    'items in groups': Case(1, 20, 18, 6, 9, 3, **ALL),
    'group per head': Case(2, 20, 3, 6, 9, 3, **ALL),
    'wide tiles': Case(1, 70, 2, 64, 128, 1, 64, **ALL),
    'tiles of 48 and 96': Case(1, 50, 1, 48, 96, 1, 64, **ALL),
    'packed': Case(packed=(20, 1, 1, 15), **ALL),
    'packed at chunks': Case(packed=(16, 16, 5), **ALL),
    'packed, nothing else': Case(packed=(3, 34)),
    'swapped': Case(swapped=True, **ALL),
    'swapped, by channel': Case(swapped=True, skip_axes=2, packed=(5, 32)),
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
def test_states_before_chunks(case: Case) -> None:
    """Each one is the final state of the chunks before it.

    That before the first chunk is not kept.
    """
    if case.packed:
        pytest.skip('a part of a packed row has other numbers')
    inputs = in_dtype(case.inputs(), torch.float32)
    _, last, kept = case.forward(inputs)
    size = min(64, max(16, case.chunk_size))
    chunks = -(-case.length // size)
    states = kept[:-2].view(case.batch, chunks - 1, *last.shape[1:])
    for chunk in range(1, chunks):
        frames = slice(0, chunk * size)
        cut = [
            t[:, frames] if t is not None and i in (0, 1, 3, 4, 6) else t
            for i, t in enumerate(inputs)
        ]
        _, state, _ = case.forward(cut)
        assert torch.equal(states[:, chunk - 1], state)


@EACH_CASE
def test_layout_is_kept(case: Case) -> None:
    """The output lies in memory as torch would lay it."""
    inputs = in_dtype(case.inputs(), torch.float32)
    y, last, states = case.forward(inputs)
    assert y.stride() == torch.empty_like(inputs[0]).stride()
    assert last.is_contiguous() and states.is_contiguous()


@pytest.mark.parametrize(
    'dtype', (torch.float16, torch.bfloat16), ids=('float16', 'bfloat16')
)
@pytest.mark.parametrize('name', ('plain', 'all', 'packed'))
def test_half(name: str, dtype: torch.dtype) -> None:
    """Half precision outside, float32 inside; the parameters stay."""
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
    y, last, states = case.forward(inputs)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    assert states.dtype == torch.float32
    check((y,), outputs[:1], dtype)
    check((last,), outputs[1:], torch.float32)
    actual = case.backward(inputs, grads)
    for gradient, tensor in zip(actual, inputs, strict=True):
        assert tensor is None or gradient.dtype == tensor.dtype
    check(actual, gradients, dtype, True)


@EACH_SET
def test_threads_do_not_matter(isa: str) -> None:
    """Equal bits with one, two and three threads."""
    case = Case(2, 40, 10, 16, 9, 1, **ALL)
    inputs = in_dtype(case.inputs(), torch.float32)
    grads = tuple(grad.float() for grad in case.grads())
    results = []
    for count in (1, 2, 3):
        with threads(count):
            forward = case.forward(inputs, isa)
            results.append((*forward, *case.backward(inputs, grads, isa)))
    for one, *others in zip(*results, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_gradient_without_memory() -> None:
    """That of an unused final state is one number, expanded."""
    case = Case(1, 20, 2, 21, 19, 1, carry=True)
    inputs = in_dtype(case.inputs(), torch.float32)
    grad_y, dense = (torch.ones_like(t) for t in case.forward(inputs)[:2])
    expanded = torch.ones(()).expand(dense.shape)
    for one, other in zip(
        case.backward(inputs, (grad_y, dense)),
        case.backward(inputs, (grad_y, expanded)),
        strict=True,
    ):
        assert one is other is None or torch.equal(one, other)


def test_large_steps() -> None:
    """Beyond 20 softplus is the identity; exp reaches 0 and stays there."""
    case = Case(1, 8, 2, 4, 3, 1, softplus=True, carry=True)
    inputs = case.inputs()
    steps = torch.tensor([-800, -30, 19.9, 20, 20.1, 90, 800, 1e6])
    inputs[1] = steps.double().view(1, 8, 1).expand(1, 8, 2)
    for dtype in (torch.float64, torch.float32):
        data = in_dtype(inputs, dtype)
        grads = case.grads()
        outputs, gradients = expected(case.define, data, grads)
        check(case.forward(data)[:2], outputs, dtype)
        grads = tuple(grad.to(dtype) for grad in grads)
        check(case.backward(data, grads), gradients, dtype, True)


@EACH_SET
def test_gradient_of_fast_heads(isa: str) -> None:
    """What would cancel in it is not there: no noise in the gradient."""
    case = Case(1, 200, 3, 16, 8, 1, 64, softplus=True)
    inputs = case.inputs()
    inputs[2] = torch.tensor([-63.0, -20.0, -1.0], dtype=torch.float64)
    inputs[1] += 1
    data = in_dtype(inputs, torch.float32)
    grads = case.grads()
    _, gradients = expected(case.define, data, grads)
    grads = tuple(grad.float() for grad in grads)
    dA = case.backward(data, grads, isa)[2].double()
    assert ((dA - gradients[2]) / gradients[2]).abs().max() < 1e-5


@EACH_SET
def test_denormals_are_restored(isa: str) -> None:
    """Torch computes with denormal numbers after a call as before."""
    case = Case(1, 20, 2, 4, 3, 1)
    inputs = in_dtype(case.inputs(), torch.float32)
    grads = tuple(grad.float() for grad in case.grads())
    case.backward(inputs, grads, isa)
    assert (torch.full((64,), 1e-30) * 1e-10 > 0).all()


@EACH_SET
@EACH_DTYPE
@pytest.mark.parametrize('bad', (float('inf'), float('nan')))
def test_bad_channel_stays_alone(
    bad: float, dtype: torch.dtype, isa: str
) -> None:
    """Inf and NaN show in their channel from their chunk on."""
    case = Case(1, 80, 2, 21, 3, 1, 16, **ALL)
    inputs = in_dtype(case.inputs(), dtype)
    clean = case.forward(inputs, isa)
    inputs[0][0, 39, 1, 20] = bad
    y, last, _ = case.forward(inputs, isa)
    others = torch.ones(2, 21, dtype=torch.bool)
    others[1, 20] = False
    assert torch.equal(y[:, :, others], clean[0][:, :, others])
    assert torch.equal(y[:, :32], clean[0][:, :32])
    assert torch.equal(last[:, others], clean[1][:, others])
    assert not y[0, 39:, 1, 20].isfinite().any()


@EACH_SET
@EACH_DTYPE
def test_divergence_shows(dtype: torch.dtype, isa: str) -> None:
    """A growing state overflows as in the definition."""
    case = Case(1, 70, 2, 4, 3, 1)
    inputs = in_dtype(case.inputs(), dtype)
    inputs[2] = torch.full_like(inputs[2], 50)
    inputs[1] = inputs[1] + 1
    wanted, last_wanted = case.define(*inputs)
    assert not wanted[:, -1].isfinite().any()
    assert not last_wanted.isfinite().any()
    y, last, _ = case.forward(inputs, isa)
    assert not y[:, -1].isfinite().any()
    assert not last.isfinite().any()


@EACH_SET
def test_infinite_matrix_meets_no_padding(isa: str) -> None:
    """0 times infinity in a column that is not there gives no NaN."""
    case = Case(1, 3, 1, 1, 1, 1)
    x, dt = torch.ones(1, 3, 1, 1), torch.ones(1, 3, 1)
    B, C = torch.ones(2, 1, 3, 1, 1).unbind()
    B[:, 2] = float('inf')
    inputs = [x, dt, -torch.ones(1), B, C, None, None, None, None]
    y, last, _ = case.forward(inputs, isa)
    assert y[0, 2].item() == last.item() == float('inf')
