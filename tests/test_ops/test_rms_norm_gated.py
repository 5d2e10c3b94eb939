"""The gated RMS normalisation: both orders, groups, gradients."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmssm.ops import rms_norm_gated

BACKENDS = ('reference', 'torch')


def make(shape=(2, 3, 12), dtype=torch.float64, bias=True, gate=True, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    inputs = {'x': normal(*shape), 'weight': normal(shape[-1])}
    if bias:
        inputs['bias'] = normal(shape[-1])
    if gate:
        inputs['z'] = normal(*shape)
    return inputs


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('norm_before_gate', [False, True])
def test_two_channels_by_hand(backend, norm_before_gate):
    # silu(ln 3) = 3 / 4 ln 3 for both channels: a common factor, which the
    # normalisation takes out unless the gate comes after it.
    # x = (3, 4): the root mean square is 5 / sqrt(2).
    gate = math.log(3)
    y = rms_norm_gated(
        torch.tensor([3.0, 4.0], dtype=torch.float64),
        torch.tensor([10.0, 100.0], dtype=torch.float64),
        bias=torch.tensor([1.0, 2.0], dtype=torch.float64),
        z=torch.full((2,), gate, dtype=torch.float64),
        eps=0.0,
        norm_before_gate=norm_before_gate,
        backend=backend,
    )
    root = math.sqrt(2)
    expected = torch.tensor([1 + 6 * root, 2 + 80 * root]).double()
    if norm_before_gate:
        expected *= 0.75 * gate
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('norm_before_gate', [False, True])
@pytest.mark.parametrize('group_size', [None, 12, 4, 1])
@pytest.mark.parametrize(
    'options', [{}, {'bias': False}, {'gate': False}], ids=str
)
def test_torch_equals_reference(
    run_with_gradients,
    assert_same,
    options,
    group_size,
    norm_before_gate,
    dtype,
):
    inputs = make(dtype=dtype, **options)
    expected, actual = (
        run_with_gradients(
            functools.partial(
                rms_norm_gated,
                group_size=group_size,
                norm_before_gate=norm_before_gate,
                backend=backend,
            ),
            inputs,
        )
        for backend in BACKENDS
    )
    assert_same(actual, expected, dtype)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(st.integers(0, 3), max_size=3),
    groups=st.integers(1, 3),
    group_size=st.integers(1, 5),
    norm_before_gate=st.booleans(),
)
def test_any_shape(
    run_with_gradients, assert_same, rows, groups, group_size, norm_before_gate
):
    inputs = make((*rows, groups * group_size))
    expected, actual = (
        run_with_gradients(
            functools.partial(
                rms_norm_gated,
                group_size=group_size,
                norm_before_gate=norm_before_gate,
                backend=backend,
            ),
            inputs,
        )
        for backend in BACKENDS
    )
    assert actual['out0'].shape == inputs['x'].shape
    assert_same(actual, expected, torch.float64)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('norm_before_gate', [False, True])
@pytest.mark.parametrize('group_size', [None, 2])
def test_gradcheck(backend, norm_before_gate, group_size):
    inputs = make((2, 4))
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]

    def fn(x, weight, bias, z):
        return rms_norm_gated(
            x,
            weight,
            bias,
            z,
            group_size=group_size,
            norm_before_gate=norm_before_gate,
            backend=backend,
        )

    assert torch.autograd.gradcheck(fn, leaves)
    assert torch.autograd.gradgradcheck(fn, leaves)


@pytest.mark.parametrize('name', ['x', 'weight', 'bias', 'z'])
def test_gradient_of_one_input_only(run_with_gradients, name):
    inputs = make()
    every = run_with_gradients(rms_norm_gated, inputs)
    others = {key: value for key, value in inputs.items() if key != name}
    one = run_with_gradients(
        functools.partial(rms_norm_gated, **others), {name: inputs[name]}
    )
    assert torch.equal(one[f'grad_{name}'], every[f'grad_{name}'])


@pytest.mark.parametrize('backend', BACKENDS)
def test_groups_are_normalised_apart(backend):
    inputs = make((2, 12), bias=False)
    inputs['weight'] = torch.ones(12, dtype=torch.float64)
    y = rms_norm_gated(**inputs, group_size=4, eps=0.0, backend=backend)
    mean_square = y.unflatten(-1, (3, 4)).square().mean(-1)
    torch.testing.assert_close(mean_square, torch.ones_like(mean_square))


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('norm_before_gate', [False, True])
def test_strided_inputs(
    run_with_gradients, assert_same, backend, norm_before_gate
):
    inputs = make()
    norm = functools.partial(
        rms_norm_gated, norm_before_gate=norm_before_gate, backend=backend
    )

    def strided(tensor):
        order = tuple(reversed(range(tensor.ndim)))
        wide = tensor.permute(order).repeat_interleave(2, dim=0)
        return wide[::2].permute(order)

    actual = run_with_gradients(
        lambda **leaves: norm(
            **{name: strided(leaf) for name, leaf in leaves.items()}
        ),
        inputs,
    )
    expected = run_with_gradients(norm, inputs)
    assert_same(actual, expected, torch.float64)


@pytest.mark.parametrize('backend', BACKENDS)
def test_a_row_of_zeros_gives_the_bias(run_with_gradients, backend):
    inputs = make((2, 12), dtype=torch.float32)
    inputs['x'][0] = 0
    result = run_with_gradients(
        functools.partial(rms_norm_gated, backend=backend), inputs
    )
    assert torch.equal(result['out0'][0], inputs['bias'])
    assert all(value.isfinite().all() for value in result.values())


@pytest.mark.parametrize('backend', BACKENDS)
def test_nan_stays_in_its_group(backend):
    inputs = make((2, 12))
    inputs['x'][1, 5] = torch.nan
    y = rms_norm_gated(**inputs, group_size=4, backend=backend)
    bad = torch.zeros(2, 12, dtype=torch.bool)
    bad[1, 4:8] = True
    assert torch.equal(y.isnan(), bad)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize('norm_before_gate', [False, True])
@pytest.mark.parametrize('backend', BACKENDS)
def test_low_precision_input(
    run_with_gradients, backend, norm_before_gate, dtype
):
    norm = functools.partial(
        rms_norm_gated, norm_before_gate=norm_before_gate, backend=backend
    )
    inputs = {name: t.to(dtype) for name, t in make().items()}
    inputs['weight'] = inputs['weight'].float()
    result = run_with_gradients(norm, inputs)
    exact = norm(**{name: t.double() for name, t in inputs.items()})
    assert result['out0'].dtype == dtype
    assert result['grad_x'].dtype == dtype
    assert result['grad_weight'].dtype == torch.float32
    # Only the output is rounded, once.
    torch.testing.assert_close(
        result['out0'].double(),
        exact,
        rtol=0.501 * torch.finfo(dtype).eps,
        atol=1e-6,
    )


@pytest.mark.parametrize('backend', BACKENDS)
def test_autocast_changes_nothing(backend):
    inputs = make(dtype=torch.float32)
    expected = rms_norm_gated(**inputs, backend=backend)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        actual = rms_norm_gated(**inputs, backend=backend)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    ('name', 'shape'),
    [
        ('x', ()),
        ('x', (2, 3, 11)),
        ('weight', (11,)),
        ('weight', (1, 12)),
        ('bias', (1,)),
        ('z', (2, 12)),
    ],
)
def test_bad_shape(name, shape):
    inputs = make()
    inputs[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match='has shape .* expected'):
        rms_norm_gated(**inputs)


@pytest.mark.parametrize(
    ('argument', 'error', 'message'),
    [
        ({'group_size': 5}, ValueError, 'expected a divisor of dim = 12'),
        ({'group_size': 0}, ValueError, '`group_size` is 0'),
        ({'group_size': 4.0}, TypeError, '`group_size` is 4.0 .* an int'),
        ({'weight': None}, TypeError, '`weight` is a NoneType'),
        ({'x': torch.zeros(12).int()}, TypeError, '`x` has dtype torch.int32'),
        ({'z': [0.0]}, TypeError, '`z` is a list'),
    ],
)
def test_bad_argument(argument, error, message):
    with pytest.raises(error, match=message):
        rms_norm_gated(**make() | argument)


@pytest.mark.parametrize('norm_before_gate', [False, True])
@pytest.mark.parametrize('group_size', [None, 4])
def test_one_graph_serves_every_length(
    run_with_gradients, assert_same, group_size, norm_before_gate
):
    torch._dynamo.reset()
    compilations = []

    def count(graph, example_inputs):
        compilations.append(graph)
        return graph

    norm = functools.partial(
        rms_norm_gated,
        group_size=group_size,
        norm_before_gate=norm_before_gate,
    )
    graphs = {
        backend: torch.compile(
            norm, fullgraph=True, backend=backend, dynamic=True
        )
        for backend in (count, 'aot_eager')
    }
    for length in (5, 2, 9):
        inputs = make((2, length, 12))
        expected = run_with_gradients(norm, inputs)
        for compiled in graphs.values():
            actual = run_with_gradients(compiled, inputs)
            assert_same(actual, expected, torch.float64)
    assert len(compilations) == 1


def test_exported_program_takes_any_length():
    class Norm(torch.nn.Module):
        def forward(self, inputs):
            return rms_norm_gated(**inputs)

    length = torch.export.Dim('length', min=1, max=1000)
    dynamic = {
        name: {1: length} if name in ('x', 'z') else None for name in make()
    }
    program = torch.export.export(
        Norm(), (make((2, 5, 12)),), dynamic_shapes=(dynamic,)
    ).module()
    for other in (1, 2, 33):
        inputs = make((2, other, 12))
        torch.testing.assert_close(program(inputs), rms_norm_gated(**inputs))
