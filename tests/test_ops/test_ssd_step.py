"""One frame of the SSD recurrence."""

import pytest
import torch

from mmssm.ops import ssd_chunk_scan, ssd_step
from mmssm.ops.availability import native_obstacle

NEEDS_NATIVE = pytest.mark.skipif(
    native_obstacle() is not None, reason=f'no kernels: {native_obstacle()}'
)


def frame_of(inputs, t):
    """Arguments of `ssd_step` but the state, for frame ``t``."""
    frame = {
        name: inputs[name][:, t]
        for name in ('x', 'dt', 'B', 'C', 'z')
        if name in inputs
    }
    for name in ('A', 'D', 'dt_bias'):
        if name in inputs:
            frame[name] = inputs[name]
    return frame


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('groups', [1, 2, 4])
@pytest.mark.parametrize('backend', ['reference', 'torch'])
def test_steps_equal_scan(
    make_ssd, run_with_gradients, assert_same, backend, groups, dtype
):
    inputs = make_ssd(7, groups=groups, dtype=dtype, D='channel')

    def in_steps(**leaves):
        state, outputs = leaves['initial_states'], []
        for t in range(7):
            y, state = ssd_step(
                state, **frame_of(leaves, t), dt_softplus=True, backend=backend
            )
            outputs.append(y)
        return torch.stack(outputs, dim=1), state

    def whole(**leaves):
        return ssd_chunk_scan(
            **leaves,
            chunk_size=3,
            dt_softplus=True,
            return_final_states=True,
            backend='reference',
        )

    expected = run_with_gradients(whole, inputs)
    assert_same(run_with_gradients(in_steps, inputs), expected, dtype)


@NEEDS_NATIVE
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_native_serves_what_needs_no_gradient(make_ssd, assert_same, dtype):
    inputs = make_ssd(1, groups=2, dtype=dtype, D='channel')
    frame = frame_of(inputs, 0)
    args = (inputs['initial_states'],)
    with torch.profiler.profile() as profile:
        results = ssd_step(*args, **frame, dt_softplus=True)
    assert 'mmssm::ssd_step' in {event.name for event in profile.events()}
    expected = ssd_step(*args, **frame, dt_softplus=True, backend='reference')
    names = ('y', 'state')
    assert_same(
        dict(zip(names, results, strict=True)),
        dict(zip(names, expected, strict=True)),
        dtype,
    )


@NEEDS_NATIVE
def test_native_gives_no_gradients(make_ssd):
    inputs = make_ssd(1)
    state, frame = inputs['initial_states'], frame_of(inputs, 0)
    frame['x'] = frame['x'].clone().requires_grad_()
    with pytest.raises(RuntimeError, match='no gradients on backend=.native'):
        ssd_step(state, **frame, backend='native')
    with torch.no_grad():
        y, _ = ssd_step(state, **frame, backend='native')
    assert not y.requires_grad
    y, _ = ssd_step(state, **frame)
    (grad,) = torch.autograd.grad(y.sum(), frame['x'])
    assert grad.abs().sum() > 0


def test_no_channels(make_ssd):
    inputs = make_ssd(1, headdim=0)
    y, state = ssd_step(inputs['initial_states'], **frame_of(inputs, 0))
    assert y.shape == inputs['x'][:, 0].shape
    assert state.shape == inputs['initial_states'].shape


def test_state_is_not_written(make_ssd):
    inputs = make_ssd(1)
    state = inputs['initial_states']
    before = state.clone()
    _, new_state = ssd_step(state, **frame_of(inputs, 0))
    assert torch.equal(state, before)
    assert not torch.equal(new_state, before)


@pytest.mark.parametrize('backend', ['reference', 'torch'])
def test_gradcheck(make_ssd, backend):
    inputs = make_ssd(1, batch=1, heads=2, headdim=2, state=2)
    frame = frame_of(inputs, 0)
    leaves = [inputs['initial_states'], *frame.values()]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]

    def fn(state, *tensors):
        named = dict(zip(frame, tensors, strict=True))
        return ssd_step(state, **named, dt_softplus=True, backend=backend)

    assert torch.autograd.gradcheck(fn, leaves)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_keeps_a_float32_state(make_ssd, dtype):
    inputs = make_ssd(1, dtype=torch.float32)
    state = inputs['initial_states']
    frame = {
        name: value.to(dtype) for name, value in frame_of(inputs, 0).items()
    }
    y, new_state = ssd_step(state, **frame)
    assert y.dtype == dtype
    assert new_state.dtype == torch.float32
    exact = {name: value.double() for name, value in frame.items()}
    _, expected = ssd_step(state.double(), **exact)
    torch.testing.assert_close(
        new_state.double(), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ('name', 'shape'),
    [
        ('x', (2, 4)),
        ('dt', (2, 3)),
        ('A', (3,)),
        ('B', (2, 2, 4)),
        ('C', (2, 1, 3)),
        ('D', (5,)),
        ('z', (2, 4, 4)),
        ('dt_bias', (1,)),
        ('state', (2, 4, 3, 5)),
    ],
)
def test_bad_shape(make_ssd, name, shape):
    inputs = make_ssd(1)
    arguments = {'state': inputs['initial_states'], **frame_of(inputs, 0)}
    arguments[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match='has shape .* expected') as error:
        ssd_step(**arguments)
    assert str(shape) in str(error.value)
