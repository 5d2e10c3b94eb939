"""Clip mode and step mode of every temporal model give the same numbers."""

import itertools

import pytest
import torch

from mmssm.models.heads import LinearPhaseHead, PhaseHead
from mmssm.models.temporal import Framewise, PlainMamba2, SurgicalMamba

CROSS_ENTROPY = dict(type='PhaseCrossEntropyLoss')
SMALL = dict(in_channels=6, d_model=16, num_layers=2, d_state=8, headdim=8)
# Shorter than the kernel (4), than every chunk, prime, and longer.
CLIP_LENS = [1, 2, 3, 5, 7, 8, 13, 23]
CHUNKS = [(8, 8, 4), (8, 4, 5), (4, 8, 3), (16, 6, 7), (5, 3, 32)]
ABLATIONS = {
    'full': {},
    'without_rotation': dict(rotation_rank=None),
    'without_intensity': dict(use_intensity=False),
    'without_fast_path': dict(use_fast_path=False),
    'without_slow_path': dict(use_slow_path=False, use_intensity=False),
    'without_carry': dict(carry_state=False),
    'different_states': dict(d_state_slow=12),
}


def surgical_mamba(chunks=(8, 8, 4), **switches):
    torch.manual_seed(0)
    return SurgicalMamba(
        **SMALL,
        **{
            'rotation_rank': 2,
            'chunk_size_slow': chunks[0],
            'chunk_size_fast': chunks[1],
            **switches,
        },
    ).eval()


def phase_head(chunk_size=4, **switches):
    torch.manual_seed(1)
    return PhaseHead(
        16,
        5,
        CROSS_ENTROPY,
        d_state=8,
        headdim=8,
        chunk_size=chunk_size,
        **{'rotation_rank': 2, **switches},
    ).eval()


def run_clips(model, x, clip_len):
    state, outputs, intensity = None, [], []
    for clip in x.split(clip_len, dim=1):
        out = model(clip, state)
        state = out.state
        outputs.append(out.hidden)
        intensity.append(out.intensity_logits)
    if intensity[0] is None:
        return torch.cat(outputs, 1), state, None
    return torch.cat(outputs, 1), state, torch.cat(intensity, 2)


def run_steps(model, x, clip_len):
    state = model.init_state(len(x), clip_len, dtype=x.dtype)
    outputs, intensity = [], []
    for t in range(x.shape[1]):
        out = model.step(x[:, t], state)
        state = out.state
        outputs.append(out.hidden)
        intensity.append(out.intensity_logits)
    state = model.end_clip(state)
    if intensity[0] is None:
        return torch.stack(outputs, 1), state, None
    return torch.stack(outputs, 1), state, torch.stack(intensity, 2)


def check_modes(model, x, clip_len, tolerance):
    clip, clip_state, clip_intensity = run_clips(model, x, clip_len)
    step, step_state, step_intensity = run_steps(model, x, clip_len)
    close = dict(rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(step, clip, **close)
    if clip_intensity is None:
        assert step_intensity is None
    else:
        torch.testing.assert_close(step_intensity, clip_intensity, **close)
    for a, b in zip(step_state.tensors(), clip_state.tensors(), strict=True):
        torch.testing.assert_close(a, b, **close)


@torch.no_grad()
@pytest.mark.parametrize('chunks', CHUNKS, ids=str)
def test_step_matches_forward_in_float64(chunks):
    model = surgical_mamba(chunks).double()
    head = phase_head(chunks[2]).double()
    for clip_len in CLIP_LENS:
        # Three whole clips and a partial one.
        frames = 3 * clip_len + clip_len // 2
        x = torch.randn(2, frames, 6, dtype=torch.float64)
        check_modes(model, x, clip_len, 1e-10)
        h = torch.randn(2, frames, 16, dtype=torch.float64)
        check_modes(head, h, clip_len, 1e-10)


@torch.no_grad()
@pytest.mark.parametrize('clip_len', [3, 13, 24])
def test_step_matches_forward_in_float32(clip_len):
    x = torch.randn(2, 3 * clip_len + 5, 6)
    check_modes(surgical_mamba(), x, clip_len, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize('name', ABLATIONS)
def test_step_matches_forward_for_every_ablation(name):
    model = surgical_mamba((8, 5, 4), **ABLATIONS[name]).double()
    for clip_len in (3, 13, 16):
        x = torch.randn(2, 3 * clip_len + 2, 6, dtype=torch.float64)
        check_modes(model, x, clip_len, 1e-10)


@torch.no_grad()
@pytest.mark.parametrize('rotation_rank', [None, 2, 6])
def test_plain_mamba2_modes(rotation_rank):
    torch.manual_seed(0)
    model = PlainMamba2(**SMALL, chunk_size=5, rotation_rank=rotation_rank)
    for clip_len in (3, 13, 15):
        x = torch.randn(2, 3 * clip_len + 2, 6, dtype=torch.float64)
        check_modes(model.double().eval(), x, clip_len, 1e-10)


@torch.no_grad()
def test_memoryless_modes():
    x = torch.randn(2, 17, 6, dtype=torch.float64)
    check_modes(Framewise(6, 16).double().eval(), x, 5, 1e-12)
    head = LinearPhaseHead(6, 5, CROSS_ENTROPY).double().eval()
    check_modes(head, x, 5, 1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    'name', [n for n in ABLATIONS if n not in ('full', 'without_carry')]
)
def test_switches_change_the_model(name):
    x = torch.randn(1, 40, 6)
    full, _, _ = run_clips(surgical_mamba(), x, 20)
    ablated = surgical_mamba(**ABLATIONS[name])
    # The same weights where both have them; what is gone must matter.
    weights = {
        key: value
        for key, value in surgical_mamba().state_dict().items()
        if key in ablated.state_dict()
        and value.shape == ablated.state_dict()[key].shape
    }
    ablated.load_state_dict(weights, strict=False)
    out, _, _ = run_clips(ablated, x, 20)
    assert (out - full).abs().max() > 1e-3


@torch.no_grad()
def test_memory_reaches_across_clips_only_with_carry():
    x = torch.randn(1, 30, 6)
    changed = x.clone()
    changed[:, 2] += 1
    for carry, reaches in ((True, True), (False, False)):
        model = surgical_mamba(carry_state=carry)
        a, _, _ = run_clips(model, x, 10)
        b, _, _ = run_clips(model, changed, 10)
        assert ((a[:, 10:] - b[:, 10:]).abs().max() > 1e-6) == reaches


@torch.no_grad()
def test_causality():
    """A later frame leaves earlier outputs bit-identical."""
    model = surgical_mamba()
    x = torch.randn(1, 40, 6)
    changed = x.clone()
    changed[:, 25] += 1
    a, _, _ = run_clips(model, x, 16)
    b, _, _ = run_clips(model, changed, 16)
    assert torch.equal(a[:, :25], b[:, :25])
    assert not torch.equal(a[:, 25:], b[:, 25:])


@torch.no_grad()
def test_rotation_preserves_the_norm():
    path = surgical_mamba().blocks[0].mixer.slow
    ssm_state = torch.randn(2, path.num_heads, 8, 8, dtype=torch.float64)
    y_mean = torch.randn(2, path.num_heads, 8, dtype=torch.float64)
    rotated = path.regramming.double()(ssm_state, y_mean)
    assert (rotated - ssm_state).norm() > 0.1 * ssm_state.norm()
    torch.testing.assert_close(
        rotated.norm(dim=(2, 3)), ssm_state.norm(dim=(2, 3))
    )


@torch.no_grad()
def test_empty_clip():
    model = surgical_mamba()
    _, state, _ = run_clips(model, torch.randn(2, 9, 6), 9)
    out = model(torch.randn(2, 0, 6), state)
    assert out.hidden.shape == (2, 0, 16)
    for a, b in zip(out.state.tensors(), state.tensors(), strict=True):
        assert torch.equal(a, b)


@torch.no_grad()
def test_autocast_keeps_states_in_float32():
    model = surgical_mamba()
    x = torch.randn(1, 24, 6)
    exact, _, _ = run_clips(model, x, 12)
    with torch.autocast('cpu', torch.bfloat16):
        low, state, _ = run_clips(model, x, 12)
        stepped, _, _ = run_steps(model, x, 12)
    for block in state.blocks:
        assert block.slow.ssm_state.dtype == torch.float32
    assert (low - exact).abs().max() < 0.2 * exact.abs().max()
    assert (stepped - exact).abs().max() < 0.2 * exact.abs().max()


@torch.no_grad()
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_model_cast_to_half_precision(dtype):
    """Over chunk ends, in both modes."""
    x = torch.randn(1, 24, 6)
    exact, _, _ = run_clips(surgical_mamba(), x, 12)
    model = surgical_mamba().to(dtype)
    clip, state, _ = run_clips(model, x.to(dtype), 12)
    step, _, _ = run_steps(model, x.to(dtype), 12)
    assert clip.dtype == step.dtype == dtype
    assert state.blocks[0].slow.ssm_state.dtype == torch.float32
    for low in (clip, step):
        assert (low - exact).abs().max() < 0.2 * exact.abs().max()


def test_every_parameter_gets_a_gradient():
    model = surgical_mamba().train()
    head = phase_head().train()
    state, loss = None, 0.0
    for clip in torch.randn(2, 3, 18, 6).unbind(1):
        out = model(clip, state)
        state = out.state
        logits = head(out.hidden).hidden
        loss = loss + logits.square().sum() + out.intensity_logits.sum()
    loss.backward()
    for name, parameter in itertools.chain(
        model.named_parameters(), head.named_parameters()
    ):
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_constant_cost_of_a_stream():
    model = surgical_mamba()
    state = model.init_state(1, clip_len=13)
    sizes = set()
    with torch.no_grad():
        for x in torch.randn(60, 1, 6):
            state = model.step(x, state).state
            sizes.add(state.nbytes())
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda m: m(torch.randn(2, 4, 5)), 'in_channels = 6'),
        (lambda m: m(torch.randn(2, 6)), 'in_channels'),
        (lambda m: m.step(torch.randn(2, 4, 6)), 'in_channels'),
        (lambda m: m(torch.randn(2, 4, 6), m.init_state(3)), '3 streams'),
        (
            lambda m: m(torch.randn(2, 4, 6), m.init_state(2, clip_len=3)),
            'of clips of 3',
        ),
        (
            lambda m: m(torch.randn(2, 4, 6), m.step(torch.randn(2, 6)).state),
            'middle of a clip',
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(surgical_mamba())


def test_state_of_another_kind():
    with pytest.raises(TypeError, match='expected what `init_state`'):
        surgical_mamba()(torch.randn(2, 4, 6), {})


@pytest.mark.parametrize(
    ('switches', 'message'),
    [
        (
            dict(use_slow_path=False, use_fast_path=False),
            'at least one path',
        ),
        (dict(use_slow_path=False), 'needs the slow path'),
        (dict(headdim=7), 'multiple of'),
        (dict(chunk_size_slow=0), 'chunk_size'),
        (dict(rotation_rank=0), 'None for no rotation'),
        (dict(d_state=0), 'd_state'),
        (dict(num_layers=0), 'num_layers'),
    ],
)
def test_bad_arguments(switches, message):
    with pytest.raises(ValueError, match=message):
        SurgicalMamba(**{**SMALL, **switches})
