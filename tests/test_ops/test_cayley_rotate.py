"""The Cayley rotation: exactness, gradients, extreme angles."""

import functools
import importlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmssm.ops import cayley_matrix, cayley_rotate

BACKENDS = ('reference', 'torch')
# (state, rank): 2 rank below, at and above state
SIZES = ((16, 2), (16, 7), (8, 4), (5, 3), (4, 6))


def make(
    state=16, rank=2, theta=1.0, batch=2, heads=3, headdim=5,
    dtype=torch.float64,
):  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    return {
        'state': normal(batch, heads, headdim, state),
        'U': F.normalize(normal(batch, heads, state, rank), dim=-2),
        'V': F.normalize(normal(batch, heads, state, rank), dim=-2),
        'theta': theta * (normal(batch, heads, rank).abs() + 0.5),
    }


@pytest.mark.parametrize('backend', BACKENDS)
def test_quarter_turn_by_hand(backend):
    # One plane (e_1, e_2) with theta = 2 tan(angle / 2): a turn by 90
    # degrees that leaves the third axis alone.
    U = torch.tensor([1.0, 0, 0]).view(1, 1, 3, 1)
    V = torch.tensor([0.0, 1, 0]).view(1, 1, 3, 1)
    state = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).view(1, 1, 2, 3)
    rotated = cayley_rotate(state, U, V, torch.full((1, 1, 1), 2.0), backend)
    expected = torch.tensor([[-2.0, 1, 3], [-5, 4, 6]]).view(1, 1, 2, 3)
    torch.testing.assert_close(rotated, expected)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(('state', 'rank'), SIZES)
def test_torch_equals_reference(
    run_with_gradients, assert_same, state, rank, dtype
):
    inputs = make(state, rank, dtype=dtype)
    expected = run_with_gradients(
        functools.partial(cayley_rotate, backend='reference'), inputs
    )
    actual = run_with_gradients(cayley_rotate, inputs)
    assert_same(actual, expected, dtype)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(0, 2),
    heads=st.integers(1, 3),
    headdim=st.integers(1, 5),
    state=st.integers(1, 12),
    rank=st.integers(0, 6),
)
def test_any_shape(
    run_with_gradients, assert_same, batch, heads, headdim, state, rank
):
    inputs = make(state, rank, 1.0, batch, heads, headdim)
    expected = run_with_gradients(
        functools.partial(cayley_rotate, backend='reference'), inputs
    )
    actual = run_with_gradients(cayley_rotate, inputs)
    assert_same(actual, expected, torch.float64)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize(('state', 'rank'), [(5, 2), (4, 2)])
def test_gradcheck(backend, state, rank):
    inputs = make(state, rank, batch=1, heads=2, headdim=2)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    fn = functools.partial(cayley_rotate, backend=backend)
    assert torch.autograd.gradcheck(fn, leaves)


@pytest.mark.parametrize(('state', 'rank'), SIZES)
def test_rotates_with_the_matrix(state, rank):
    inputs = make(state, rank)
    Z = cayley_matrix(inputs['U'], inputs['V'], inputs['theta'])
    torch.testing.assert_close(cayley_rotate(**inputs), inputs['state'] @ Z)


@pytest.mark.parametrize(
    ('dtype', 'exact', 'extreme'),
    # In float32 the dense solve loses digits as theta grows; the solve of
    # size 2 rank does not.
    [(torch.float64, 1e-14, 1e-11), (torch.float32, 2e-6, 5e-4)],
    ids=str,
)
@pytest.mark.parametrize('theta', [1.0, 100.0, 1e4])
@pytest.mark.parametrize(('state', 'rank'), SIZES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_is_orthogonal(backend, state, rank, theta, dtype, exact, extreme):
    inputs = make(state, rank, theta, dtype=dtype)
    identity = torch.eye(state, dtype=dtype).expand(2, 3, state, state)
    Z = cayley_rotate(
        identity, inputs['U'], inputs['V'], inputs['theta'], backend
    )
    low_rank = backend == 'torch' and 4 * rank < state
    bound = exact if theta == 1 or low_rank else extreme
    error = (Z.mT @ Z - identity).abs().max()
    assert error < bound
    # Of determinant 1, and -1 is none of its eigenvalues: a rotation.
    torch.testing.assert_close(
        torch.linalg.det(Z.double()),
        torch.ones(2, 3, dtype=torch.float64),
        rtol=0,
        atol=10 * bound,
    )


@pytest.mark.parametrize('theta', [1.0, 100.0, 1e4])
def test_norm_is_kept_over_many_rotations(theta):
    inputs = make(16, 2, theta, dtype=torch.float32)
    state = inputs.pop('state')
    before = state.norm(dim=-1)
    for _ in range(100):
        state = cayley_rotate(state, **inputs)
    torch.testing.assert_close(state.norm(dim=-1), before, rtol=1e-4, atol=0)


@pytest.mark.parametrize(('state', 'rank'), SIZES)
def test_inverse_swaps_the_planes(state, rank):
    inputs = make(state, rank)
    rotated = cayley_rotate(**inputs)
    back = cayley_rotate(rotated, inputs['V'], inputs['U'], inputs['theta'])
    torch.testing.assert_close(back, inputs['state'])


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize(('state', 'rank'), SIZES)
def test_zero_theta_is_the_identity(backend, state, rank):
    inputs = make(state, rank, theta=0, dtype=torch.float32)
    assert torch.equal(
        cayley_rotate(**inputs, backend=backend), inputs['state']
    )


@pytest.mark.parametrize(
    ('state', 'rank', 'theta', 'bound', 'bound_theta'),
    # The rotation saturates: at 1e4 its gradient in theta is 1e-6 of the
    # others, and so has fewer digits.
    [(16, 2, 1, 1e-6, 1e-6), (16, 2, 1e4, 5e-6, 1e-2), (8, 4, 1, 1e-6, 1e-6)],
)
def test_float32_gradients(
    run_with_gradients, state, rank, theta, bound, bound_theta
):
    inputs = make(state, rank, theta, dtype=torch.float32)
    exact = run_with_gradients(
        cayley_rotate, {name: t.double() for name, t in inputs.items()}
    )
    for name, value in run_with_gradients(cayley_rotate, inputs).items():
        limit = bound_theta if name == 'grad_theta' else bound
        error = (value - exact[name]).abs().max()
        assert error < limit * exact[name].abs().max(), name


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize(('state', 'rank'), [(16, 2), (4, 2)])
def test_nan_in_one_head_stays_there(backend, state, rank):
    inputs = make(state, rank)
    inputs['theta'][0, 1] = torch.nan
    rotated = cayley_rotate(**inputs, backend=backend)
    assert rotated[0, 1].isnan().all()
    rotated[0, 1] = 0
    assert rotated.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize('backend', BACKENDS)
def test_low_precision_is_raised_to_float32(backend, dtype):
    inputs = {name: t.to(dtype) for name, t in make().items()}
    rotated = cayley_rotate(**inputs, backend=backend)
    expected = cayley_rotate(**{n: t.double() for n, t in inputs.items()})
    assert rotated.dtype == torch.float32
    torch.testing.assert_close(
        rotated.double(), expected, rtol=1e-4, atol=1e-5
    )
    assert cayley_matrix(
        inputs['U'], inputs['V'], inputs['theta']
    ).dtype == torch.float32  # fmt: skip


@pytest.mark.parametrize('backend', BACKENDS)
def test_autocast_changes_nothing(backend):
    inputs = make(dtype=torch.float32)
    planes = {name: inputs[name] for name in ('U', 'V', 'theta')}
    expected = cayley_rotate(**inputs, backend=backend)
    matrix = cayley_matrix(**planes)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        actual = cayley_rotate(**inputs, backend=backend)
        assert torch.equal(cayley_matrix(**planes), matrix)
    assert torch.equal(actual, expected)


def test_strided_inputs():
    inputs = make()
    strided = {
        name: tensor.mT.contiguous().mT if tensor.ndim == 4 else tensor
        for name, tensor in inputs.items()
    }
    strided['theta'] = inputs['theta'].repeat_interleave(2, -1)[..., ::2]
    torch.testing.assert_close(
        cayley_rotate(**strided), cayley_rotate(**inputs)
    )


@pytest.mark.parametrize(
    ('name', 'shape'),
    [
        ('state', (2, 3, 16)),
        ('state', (2, 3, 5, 15)),
        ('U', (2, 3, 16)),
        ('V', (2, 3, 16, 3)),
        ('theta', (2, 3, 16)),
    ],
)
def test_bad_shape(name, shape):
    inputs = make()
    inputs[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match='has shape .* expected'):
        cayley_rotate(**inputs)


@pytest.mark.parametrize(('state', 'rank'), [(16, 2), (4, 6)])
def test_one_graph_serves_every_batch(
    run_with_gradients, assert_same, state, rank
):
    torch._dynamo.reset()
    compilations = []

    def count(graph, example_inputs):
        compilations.append(graph)
        return graph

    graphs = [
        torch.compile(
            cayley_rotate, fullgraph=True, backend=backend, dynamic=True
        )
        for backend in (count, 'aot_eager')
    ]
    # The first one equals no other size, which would be taken for the same.
    for batch in (7, 2, 9):
        inputs = make(state, rank, batch=batch)
        expected = run_with_gradients(cayley_rotate, inputs)
        for compiled in graphs:
            actual = run_with_gradients(compiled, inputs)
            assert_same(actual, expected, torch.float64)
    assert len(compilations) == 1


@pytest.mark.parametrize(('state', 'rank'), [(16, 2), (4, 6)])
def test_exported_program_takes_any_batch(state, rank):
    class Rotate(torch.nn.Module):
        def forward(self, inputs):
            return cayley_rotate(**inputs)

    batch = torch.export.Dim('batch', min=1, max=1000)
    program = torch.export.export(
        Rotate(),
        (make(state, rank, batch=3),),
        dynamic_shapes=({name: {0: batch} for name in make()},),
    ).module()
    for other in (1, 2, 7):
        inputs = make(state, rank, batch=other)
        torch.testing.assert_close(program(inputs), cayley_rotate(**inputs))


@pytest.mark.parametrize(
    ('state', 'rank', 'expected'),
    [(128, 32, None), (64, 40, None), (128, 33, 'torch'), (65, 65, 'torch')],
)
def test_systems_too_large_for_the_kernel_go_to_torch(
    monkeypatch, state, rank, expected
):
    asked = []

    def choose(op, backend, tensor, available):
        asked.append(backend)
        return 'reference'

    module = importlib.import_module('mmssm.ops.cayley_rotate.interface')
    monkeypatch.setattr(module, 'choose_backend', choose)
    cayley_rotate(**make(state, rank, batch=1, heads=1, headdim=1))
    assert asked == [expected]
