"""The SSD scan: both backends, all gradients, all lengths."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmssm.ops import ssd_chunk_scan

CHUNK = 4
LENGTHS = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 13)
BACKENDS = ('reference', 'torch')


def scan(backend=None, chunk_size=CHUNK, softplus=True):
    return functools.partial(
        ssd_chunk_scan,
        chunk_size=chunk_size,
        dt_softplus=softplus,
        return_final_states=True,
        backend=backend,
    )


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('chunk_size', [1, 2, 8])
def test_three_frames_by_hand(backend, chunk_size):
    # Decay per unit of dt is 1/2; h_0 = 4.
    # h_1 = 4 / 2 + 1 * 1 * 1 = 3,         y_1 = 3 * 1 + 10 * 1 = 13
    # h_2 = 3 / 4 + 2 * 2 * 1 = 4.75,      y_2 = 4.75 * 2 + 10 * 2 = 29.5
    # h_3 = 4.75 / 2 + 1 * 4 * 2 = 10.375, y_3 = 10.375 * 1 + 10 * 4
    def column(*values):
        return torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1)

    y, state = ssd_chunk_scan(
        x=column(1, 2, 4),
        dt=column(1, 2, 1)[..., 0],
        A=torch.tensor([-math.log(2)], dtype=torch.float64),
        B=column(1, 1, 2),
        C=column(1, 2, 1),
        chunk_size=chunk_size,
        D=torch.tensor([10.0]),
        initial_states=torch.full((1, 1, 1, 1), 4.0),
        return_final_states=True,
        backend=backend,
    )
    expected = torch.tensor([13, 29.5, 50.375], dtype=torch.float64)
    torch.testing.assert_close(y.flatten(), expected)
    torch.testing.assert_close(state.flatten(), expected.new_tensor([10.375]))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('groups', [1, 2, 4])
@pytest.mark.parametrize('length', LENGTHS)
def test_torch_equals_reference(
    make_ssd, run_with_gradients, assert_same, length, groups, dtype
):
    inputs = make_ssd(length, groups=groups, dtype=dtype)
    expected = run_with_gradients(scan('reference'), inputs)
    actual = run_with_gradients(scan('torch'), inputs)
    assert_same(actual, expected, dtype)


@pytest.mark.parametrize(
    'options',
    [
        {'D': None},
        {'D': 'channel'},
        {'gate': False},
        {'bias': False},
        {'carry': False},
        {'D': None, 'gate': False, 'bias': False, 'carry': False},
    ],
    ids=str,
)
@pytest.mark.parametrize('softplus', [True, False])
@pytest.mark.parametrize('length', [1, CHUNK, 7])
def test_optional_arguments(
    make_ssd, run_with_gradients, assert_same, length, softplus, options
):
    inputs = make_ssd(length, **options)
    expected = run_with_gradients(scan('reference', softplus=softplus), inputs)
    actual = run_with_gradients(scan('torch', softplus=softplus), inputs)
    assert_same(actual, expected, torch.float64)


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(0, 11),
    batch=st.integers(0, 3),
    groups=st.integers(1, 3),
    heads_per_group=st.integers(1, 3),
    headdim=st.integers(1, 4),
    state=st.integers(1, 4),
    chunk_size=st.integers(1, 12),
)
def test_any_shape(
    make_ssd,
    run_with_gradients,
    assert_same,
    length,
    batch,
    groups,
    heads_per_group,
    headdim,
    state,
    chunk_size,
):
    inputs = make_ssd(
        length, batch, groups * heads_per_group, headdim, groups, state
    )
    expected = run_with_gradients(scan('reference'), inputs)
    actual = run_with_gradients(scan('torch', chunk_size), inputs)
    assert_same(actual, expected, torch.float64)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('length', [1, 2, 5])
def test_gradcheck(make_ssd, backend, length):
    inputs = make_ssd(length, batch=1, heads=2, headdim=2, state=2)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]

    def fn(*tensors):
        named = dict(zip(inputs, tensors, strict=True))
        return scan(backend, chunk_size=2)(**named)

    assert torch.autograd.gradcheck(fn, leaves)


@pytest.mark.parametrize('name', ['x', 'dt', 'A', 'B', 'C', 'initial_states'])
def test_gradient_of_one_input_only(make_ssd, run_with_gradients, name):
    inputs = make_ssd(7)
    every = run_with_gradients(scan(), inputs)
    others = {key: value for key, value in inputs.items() if key != name}
    one = run_with_gradients(
        functools.partial(scan(), **others), {name: inputs[name]}
    )
    assert torch.equal(one[f'grad_{name}'], every[f'grad_{name}'])


def test_double_backward_is_refused(make_ssd):
    inputs = make_ssd(CHUNK)
    inputs['dt'].requires_grad_()
    (grad,) = torch.autograd.grad(
        scan('torch')(**inputs)[0].square().sum(),
        inputs['dt'],
        create_graph=True,
    )
    with pytest.raises(RuntimeError, match='once_differentiable'):
        grad.sum().backward()


def test_length_zero_keeps_the_state(make_ssd):
    inputs = make_ssd(0)
    y, state = scan()(**inputs)
    assert y.shape == inputs['x'].shape
    assert torch.equal(state, inputs['initial_states'])
    assert state.data_ptr() != inputs['initial_states'].data_ptr()
    del inputs['initial_states']
    assert torch.equal(scan()(**inputs)[1], torch.zeros_like(state))


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('carry', [True, False])
def test_inputs_are_not_written(make_ssd, backend, carry):
    inputs = make_ssd(9, carry=carry)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    scan(backend)(**inputs)
    assert all(torch.equal(inputs[name], before[name]) for name in before)


@pytest.mark.parametrize('groups', [1, 2, 4])
@pytest.mark.parametrize('length', [1, 3, 9])
def test_strided_inputs(
    make_ssd, run_with_gradients, assert_same, length, groups
):
    inputs = make_ssd(length, groups=groups)
    expected = run_with_gradients(scan(), inputs)

    def strided(tensor):
        # The same numbers, stored with the axes reversed and with gaps.
        order = tuple(reversed(range(tensor.ndim)))
        wide = tensor.permute(order).repeat_interleave(2, dim=0)
        return wide[::2].permute(order)

    actual = run_with_gradients(
        lambda **leaves: scan()(
            **{name: strided(leaf) for name, leaf in leaves.items()}
        ),
        inputs,
    )
    assert_same(actual, expected, torch.float64)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('cut', [1, CHUNK - 1, CHUNK, 7, 12])
def test_carried_state_joins_two_parts(
    make_ssd, run_with_gradients, assert_same, backend, cut
):
    inputs = make_ssd(13)
    along_time = ('x', 'dt', 'B', 'C', 'z')

    def in_two_parts(**leaves):
        parts = [dict(leaves), dict(leaves)]
        for name in along_time:
            parts[0][name] = leaves[name][:, :cut]
            parts[1][name] = leaves[name][:, cut:]
        y0, state = scan(backend)(**parts[0])
        parts[1]['initial_states'] = state
        y1, state = scan(backend)(**parts[1])
        return torch.cat((y0, y1), dim=1), state

    whole = run_with_gradients(scan(backend), inputs)
    assert_same(run_with_gradients(in_two_parts, inputs), whole, torch.float64)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('frame', [0, 1, CHUNK - 1, CHUNK, 6, 8])
def test_future_frames_do_not_matter(make_ssd, backend, frame):
    inputs = make_ssd(9, dtype=torch.float32)
    before, _ = scan(backend)(**inputs)
    for name in ('x', 'dt', 'B', 'C', 'z'):
        inputs[name][:, frame] += 1
    after, _ = scan(backend)(**inputs)
    assert torch.equal(before[:, :frame], after[:, :frame])
    assert not torch.equal(before[:, frame], after[:, frame])


def test_groups_serve_consecutive_heads(make_ssd):
    inputs = make_ssd(6, groups=2)
    repeated = dict(inputs)
    for name in ('B', 'C'):
        repeated[name] = inputs[name].repeat_interleave(2, dim=2)
    y, state = scan('torch')(**inputs)
    y_repeated, state_repeated = scan('torch')(**repeated)
    torch.testing.assert_close(y, y_repeated)
    torch.testing.assert_close(state, state_repeated)
