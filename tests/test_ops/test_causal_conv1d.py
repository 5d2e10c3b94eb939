"""The causal convolution by hand, its steps and its checks.

Parity of the backends: tests/test_ops/parity.
"""

import functools

import pytest
import torch
import torch.nn.functional as F

from mmssm.ops import causal_conv1d, causal_conv1d_step

BACKENDS = ('reference', 'torch', None)


def make(
    length, batch=2, dim=3, width=4, dtype=torch.float64, bias=True, carry=True
):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    inputs = {'x': normal(batch, dim, length), 'weight': normal(dim, width)}
    if bias:
        inputs['bias'] = normal(dim)
    if carry:
        inputs['initial_states'] = normal(batch, dim, width - 1)
    return inputs


def conv(backend=None, activation='silu'):
    return functools.partial(
        causal_conv1d,
        return_final_states=True,
        activation=activation,
        backend=backend,
    )


@pytest.mark.parametrize('backend', BACKENDS)
def test_three_frames_by_hand(backend):
    # y_n = 100 + 1 * x_{n-1} + 10 * x_n, with x_0 = 7 before the first.
    y, last = causal_conv1d(
        x=torch.tensor([[[1.0, 2.0, 3.0]]]),
        weight=torch.tensor([[1.0, 10.0]]),
        bias=torch.tensor([100.0]),
        initial_states=torch.tensor([[[7.0]]]),
        return_final_states=True,
        backend=backend,
    )
    assert y.flatten().tolist() == [117, 121, 132]
    assert last.flatten().tolist() == [3]


@pytest.mark.parametrize('backend', BACKENDS)
def test_three_frames_from_the_last_one_by_hand(backend):
    # y_n = 100 + 1 * x_{n+1} + 10 * x_n, with x_3 = 7 after the last.
    y, last = causal_conv1d(
        x=torch.tensor([[[1.0, 2.0, 3.0]]]),
        weight=torch.tensor([[1.0, 10.0]]),
        bias=torch.tensor([100.0]),
        initial_states=torch.tensor([[[7.0]]]),
        return_final_states=True,
        reverse=True,
        backend=backend,
    )
    assert y.flatten().tolist() == [112, 123, 137]
    assert last.flatten().tolist() == [1]


@pytest.mark.parametrize('backend', BACKENDS)
def test_equals_conv1d_of_torch(backend):
    inputs = make(9, carry=False)
    y, _ = conv(backend)(**inputs)
    padded = F.pad(inputs['x'], (3, 0))
    weight = inputs['weight'].unsqueeze(1)
    expected = F.conv1d(padded, weight, inputs['bias'], groups=3)
    torch.testing.assert_close(y, F.silu(expected))


@pytest.mark.parametrize('carry', [True, False])
@pytest.mark.parametrize('length', [0, 1, 2, 3, 7])
def test_final_state_is_the_last_inputs(length, carry):
    inputs = make(length, carry=carry)
    x = inputs['x']
    _, last = conv()(**inputs)
    history = inputs.get('initial_states', x.new_zeros(2, 3, 3))
    expected = torch.cat((history, x), dim=-1)[..., -3:]
    assert torch.equal(last, expected)
    pointers = {tensor.data_ptr() for tensor in inputs.values()}
    assert last.data_ptr() not in pointers


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('width', [1, 2, 4])
def test_steps_equal_whole(run_with_gradients, assert_same, width, dtype):
    inputs = make(6, width=width, dtype=dtype)

    def in_steps(x, initial_states, **others):
        state, outputs = initial_states, []
        for x_t in x.unbind(-1):
            y, state = causal_conv1d_step(
                x_t, state, activation='silu', **others
            )
            outputs.append(y)
        return torch.stack(outputs, dim=-1), state

    whole = run_with_gradients(conv('reference'), inputs)
    assert_same(run_with_gradients(in_steps, inputs), whole, dtype)


def test_step_does_not_write_the_state():
    state = torch.randn(2, 3, 3)
    before = state.clone()
    causal_conv1d_step(torch.randn(2, 3), state, torch.randn(3, 4))
    assert torch.equal(state, before)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize('backend', BACKENDS)
def test_low_precision_input(backend, dtype):
    inputs = {name: t.to(dtype) for name, t in make(7).items()}
    y, last = conv(backend)(**inputs)
    assert y.dtype == last.dtype == dtype
    exact, _ = conv('reference')(**{n: t.double() for n, t in inputs.items()})
    assert torch.equal(y, exact.to(dtype))
    inputs['initial_states'] = inputs['initial_states'].float()
    assert conv(backend)(**inputs)[1].dtype == torch.float32
    y_t, state = causal_conv1d_step(
        inputs['x'][..., 0], inputs['initial_states'], inputs['weight']
    )
    assert y_t.dtype == dtype
    assert state.dtype == torch.float32


@pytest.mark.parametrize(
    ('name', 'shape'),
    [
        ('x', (2, 3)),
        ('x', (2, 5, 6)),
        ('weight', (3, 1, 4)),
        ('bias', (4,)),
        ('initial_states', (2, 3, 4)),
    ],
)
def test_bad_shape(name, shape):
    inputs = make(6)
    inputs[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match='has shape .* expected'):
        causal_conv1d(**inputs)


def test_bad_arguments():
    x, state, weight = (
        torch.zeros(2, 3),
        torch.zeros(2, 3, 3),
        torch.ones(3, 4),
    )
    with pytest.raises(ValueError, match='`conv_state` has shape'):
        causal_conv1d_step(x, state[..., :2], weight)
    with pytest.raises(ValueError, match="`activation` is 'relu'"):
        causal_conv1d_step(x, state, weight, activation='relu')
    with pytest.raises(ValueError, match='width 0'):
        causal_conv1d(x.unsqueeze(-1), weight[:, :0])
    with pytest.raises(TypeError, match='`x` has dtype torch.int64'):
        causal_conv1d(x.long().unsqueeze(-1), weight)
    with pytest.raises(TypeError, match='`weight` is a NoneType'):
        causal_conv1d(x.unsqueeze(-1), None)
    with pytest.raises(TypeError, match='`conv_state` is a NoneType'):
        causal_conv1d_step(x, None, weight)
    with pytest.raises(TypeError, match='`bias` is a list'):
        causal_conv1d_step(x, state, weight, bias=[0.0] * 3)
