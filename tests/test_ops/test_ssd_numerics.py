"""Dtypes, extreme decays and bad arguments of the SSD scan."""

import functools

import pytest
import torch

from mmssm.ops import ssd_chunk_scan, ssd_step
from mmssm.testing import relative_rms_error

BACKENDS = ('reference', 'torch')


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize('length', [0, 1, 4, 9])
@pytest.mark.parametrize('backend', BACKENDS)
def test_low_precision_input(make_ssd, backend, length, dtype):
    inputs = {
        name: tensor.to(dtype)
        for name, tensor in make_ssd(length, dtype=torch.float32).items()
    }
    y, state = ssd_chunk_scan(
        **inputs, chunk_size=4, return_final_states=True, backend=backend
    )
    assert y.dtype == dtype
    assert state.dtype == torch.float32
    exact, exact_state = ssd_chunk_scan(
        **{name: tensor.double() for name, tensor in inputs.items()},
        chunk_size=4,
        return_final_states=True,
        backend='reference',
    )
    assert relative_rms_error(state, exact_state) < 1e-6
    # Only the output is rounded, once.
    assert relative_rms_error(y, exact) < torch.finfo(dtype).eps


@pytest.mark.parametrize('length', [1, 4, 9])
@pytest.mark.parametrize('backend', BACKENDS)
def test_autocast_changes_nothing(
    make_ssd, run_with_gradients, backend, length
):
    inputs = make_ssd(length, dtype=torch.float32)

    def scan(autocast, **leaves):
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
            return ssd_chunk_scan(
                **leaves,
                chunk_size=4,
                return_final_states=True,
                backend=backend,
            )

    expected = run_with_gradients(functools.partial(scan, False), inputs)
    actual = run_with_gradients(functools.partial(scan, True), inputs)
    for name, value in expected.items():
        assert actual[name].dtype == torch.float32
        assert torch.equal(actual[name], value), name


def test_step_under_autocast(make_ssd):
    inputs = make_ssd(1, dtype=torch.float32, gate=False, bias=False)
    state = inputs.pop('initial_states')
    A, D = inputs.pop('A'), inputs.pop('D')
    frame = {name: tensor[:, 0] for name, tensor in inputs.items()}
    y, expected = ssd_step(state, A=A, D=D, **frame)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        y_autocast, actual = ssd_step(state, A=A, D=D, **frame)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)
    assert torch.equal(y_autocast, y)


def test_float64_state_for_float64_input(make_ssd):
    inputs = make_ssd(5)
    state = inputs.pop('initial_states')
    _, final = ssd_chunk_scan(
        **inputs,
        chunk_size=2,
        initial_states=state.float(),
        return_final_states=True,
    )
    assert final.dtype == torch.float64


@pytest.mark.parametrize('chunk_size', [64, 256])
def test_long_fast_decay_in_float32(make_ssd, run_with_gradients, chunk_size):
    # The running sum of the log decay reaches about 1e4: float32 sums would
    # lose 1e-5 and more (see the README of the operator).
    inputs = make_ssd(
        512, batch=1, dtype=torch.float32, gate=False, bias=False
    )
    inputs['A'] = -torch.tensor([0.01, 1.0, 16.0, 64.0])
    # Between two fast frames a slow one, which the sums must still resolve.
    inputs['dt'][:, ::2] *= 0.01

    def scan(**leaves):
        return ssd_chunk_scan(
            **leaves, chunk_size=chunk_size, return_final_states=True
        )

    exact = run_with_gradients(
        scan, {name: tensor.double() for name, tensor in inputs.items()}
    )
    for name, value in run_with_gradients(scan, inputs).items():
        scale = exact[name].abs().max()
        error = (value - exact[name]).abs().max()
        bound = 1e-5 if name.startswith('grad_') else 1e-6
        assert error < bound * scale, (name, float(error / scale))


def test_gradient_of_fast_heads_in_float32(make_ssd, run_with_gradients):
    # Their gradient is what is left when large terms cancel.
    inputs = make_ssd(
        256, batch=1, dtype=torch.float32, gate=False, bias=False
    )
    inputs['A'] = -torch.tensor([8.0, 16.0, 32.0, 64.0])
    inputs['dt'] += 0.5
    inputs['dt'][:, ::2] *= 0.01

    def scan(**leaves):
        return ssd_chunk_scan(**leaves, chunk_size=256)

    exact = run_with_gradients(
        scan, {name: tensor.double() for name, tensor in inputs.items()}
    )
    actual = run_with_gradients(scan, inputs)
    torch.testing.assert_close(
        actual['grad_A'].double(), exact['grad_A'], rtol=1e-5, atol=0
    )


def test_overflow_above_the_diagonal_stays_out(make_ssd, run_with_gradients):
    # exp(dt A) of a later frame over an earlier one overflows float32 a
    # thousandfold; neither outputs nor gradients may see it.
    inputs = make_ssd(8, dtype=torch.float32)
    inputs['dt'] += 100
    inputs['A'] -= 50
    result = run_with_gradients(
        lambda **leaves: ssd_chunk_scan(
            **leaves, chunk_size=8, return_final_states=True
        ),
        inputs,
    )
    for name, value in result.items():
        assert torch.isfinite(value).all(), name


@pytest.mark.parametrize(
    ('name', 'shape'),
    [
        ('x', (2, 6, 4)),
        ('dt', (2, 6, 3)),
        ('dt', (2, 5, 4)),
        ('A', (4, 3)),
        ('B', (2, 5, 2, 3)),
        ('B', (2, 6, 3)),
        ('C', (2, 6, 1, 3)),
        ('D', (4, 4)),
        ('D', (3,)),
        ('z', (2, 6, 4, 1)),
        ('dt_bias', (2,)),
        ('initial_states', (2, 4, 3, 5)),
    ],
)
def test_bad_shape(make_ssd, name, shape):
    inputs = make_ssd(6)
    inputs[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match='has shape .* expected') as error:
        ssd_chunk_scan(**inputs, chunk_size=4)
    assert str(shape) in str(error.value)


@pytest.mark.parametrize('groups', [0, 3])
def test_groups_must_divide_heads(make_ssd, groups):
    inputs = make_ssd(3, groups=groups)
    with pytest.raises(ValueError, match='divisor of heads = 4'):
        ssd_chunk_scan(**inputs, chunk_size=4)


def test_bad_chunk_size(make_ssd):
    with pytest.raises(ValueError, match='`chunk_size` is 0'):
        ssd_chunk_scan(**make_ssd(3), chunk_size=0)
    for value in (4.0, True, '4'):
        with pytest.raises(
            TypeError, match=f'`chunk_size` is {value!r} .* expected an int'
        ):
            ssd_chunk_scan(**make_ssd(3), chunk_size=value)


@pytest.mark.parametrize('name', ['x', 'dt', 'A', 'B', 'C'])
def test_none_for_a_required_tensor(make_ssd, name):
    inputs = make_ssd(3)
    inputs[name] = None
    message = f'`{name}` is a NoneType; expected a Tensor'
    with pytest.raises(TypeError, match=message):
        ssd_chunk_scan(**inputs, chunk_size=4)


@pytest.mark.parametrize(
    ('value', 'message'),
    [
        (torch.zeros(4, dtype=torch.complex64), '`A` has dtype torch.complex'),
        (torch.zeros(4, dtype=torch.long), '`A` has dtype torch.int64'),
        ([0.0] * 4, '`A` is a list'),
    ],
)
def test_bad_type(make_ssd, value, message):
    inputs = make_ssd(3)
    inputs['A'] = value
    with pytest.raises(TypeError, match=message):
        ssd_chunk_scan(**inputs, chunk_size=4)
