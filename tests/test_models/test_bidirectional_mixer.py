"""Mixers of two directions: published numbers and properties of poles."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from mmssm.models import PoleMixer, SelectiveScanMixer
from mmssm.models.layers.pole_direction import PoleDirection
from mmssm.ops import modal_scan_step, pole_scan, token_poles
from mmssm.utils.conversion import rename_weights
from tests.test_models.golden import Golden, load_converter

POLES = [(1, 2), (3, 1), (1, 1)]
OPTIONS = {
    'shared': dict(),
    'group': dict(group_modulation=True),
    'fixed': dict(fixed_poles=True),
    '3-real': dict(num_reals=3, num_pairs=1),
    'real-only': dict(num_reals=2, num_pairs=0),
    'pairs-only': dict(num_reals=0, num_pairs=2),
    'modal': dict(realization='modal'),
    'modal-group': dict(realization='modal', group_modulation=True),
    'modal-fixed': dict(realization='modal', fixed_poles=True),
}
LARGEST = 2.0**100


def our_weights(golden):
    """Published names of a mixer to ours, and its weights."""
    converter = load_converter('vim_to_mmssm')
    prefix = 'backbone.layers.0.mixer.'
    names = {}
    for key in golden.sd:
        full = {f'layers.0.mixer.{key}': torch.empty(0)}
        renamed = rename_weights(full, converter.RULES, converter.PLACEHOLDERS)
        (names[key],) = (name.removeprefix(prefix) for name in renamed)
    return names, {names[key]: value for key, value in golden.sd.items()}


@pytest.mark.parametrize('backend', ['reference', 'torch', None])
def test_published_mixer(backend):
    golden = Golden('open_mixer', 'vision')
    mixer = SelectiveScanMixer(48, backend=backend)
    names, weights = our_weights(golden)
    mixer.load_state_dict(weights)
    x = golden.inputs['x'].requires_grad_()
    y = mixer(x)
    golden.check('y', y)
    (y * golden.inputs['dout']).sum().backward()
    parameters = dict(mixer.named_parameters())
    gradients = {key for key in golden.out if key.startswith('grad/')}
    assert gradients == {'grad/x', *(f'grad/{key}' for key in golden.sd)}
    golden.check('grad/x', x.grad)
    for published, name in names.items():
        golden.check(f'grad/{published}', parameters[name].grad)


def test_mixer_settings():
    mixer = SelectiveScanMixer(40, expand=3, d_state=5, d_conv=2)
    assert mixer.d_inner == 120
    direction = mixer.forward_scan
    assert direction.dt_rank == 3  # 40 / 16, rounded up
    assert direction.A_log.shape == (120, 5)
    assert direction.conv1d.weight.shape == (120, 1, 2)
    assert not direction.reverse and mixer.backward_scan.reverse
    assert mixer(torch.randn(2, 7, 40)).shape == (2, 7, 40)
    assert SelectiveScanMixer(40, dt_rank=7).forward_scan.dt_rank == 7


def test_start_of_the_selective_scan():
    direction = SelectiveScanMixer(192).forward_scan
    step = softplus(direction.dt_proj.bias)
    assert step.min() >= 1e-4 * 0.99 and step.max() <= 0.1 * 1.01
    expected = torch.arange(1.0, 17).expand(384, 16)
    torch.testing.assert_close(direction.A_log.exp(), expected)
    bound = direction.dt_rank**-0.5
    assert direction.dt_proj.weight.abs().max() <= bound
    assert direction.D.eq(1).all()


@pytest.mark.parametrize(
    ('cls', 'options'),
    [
        pytest.param(SelectiveScanMixer, {}, id='selective'),
        *(
            pytest.param(PoleMixer, dict(num_groups=4, rank=6, **o), id=name)
            for name, o in OPTIONS.items()
        ),
    ],
)
def test_gradient_reaches_every_parameter(cls, options):
    mixer = cls(32, **options)
    x = torch.randn(2, 9, 32)
    mixer(x).square().mean().backward()
    for name, parameter in mixer.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        # Without pairs there are no angles to modulate.
        unused = 'theta_bias' in name and options.get('num_pairs') == 0
        assert gradient.any() or unused or not gradient.numel(), name


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_reverse_is_forward_on_flipped_tokens(options):
    forward = PoleDirection(24, num_groups=4, rank=6, **options)
    backward = PoleDirection(24, num_groups=4, rank=6, reverse=True, **options)
    disturb(forward)
    backward.load_state_dict(forward.state_dict())
    x, z = torch.randn(2, 2, 11, 24)
    expected = forward(x.flip(1), z.flip(1)).flip(1)
    torch.testing.assert_close(backward(x, z), expected)


def test_reverse_of_the_selective_scan():
    mixer = SelectiveScanMixer(24)
    mixer.backward_scan.load_state_dict(mixer.forward_scan.state_dict())
    x, z = torch.randn(2, 2, 11, 48)
    expected = mixer.forward_scan(x.flip(1), z.flip(1)).flip(1)
    torch.testing.assert_close(mixer.backward_scan(x, z), expected)


def disturb(direction, spread=0.5):
    """Give the modulation weights, as training does."""
    modulations = 2 * direction.num_modulations
    if modulations:
        with torch.no_grad():
            direction.x_proj.weight[-modulations:].normal_(std=spread)


def modulation_of(direction, c):
    _, *modulation = direction.drive(c)
    return modulation


@pytest.mark.parametrize('group_modulation', [False, True])
@pytest.mark.parametrize(
    ('delta_min', 'delta_0'), [(0.5, 1.0), (0.0, 1.0), (0.01, 3.0), (0.9, 1.0)]
)
def test_modulation_starts_as_the_identity(
    delta_min, delta_0, group_modulation
):
    direction = PoleDirection(
        24,
        num_groups=4,
        group_modulation=group_modulation,
        delta_min=delta_min,
        delta_0=delta_0,
    )
    scale = (delta_min + softplus(direction.rho_bias)) / delta_0
    assert (scale - 1).abs().max() <= 1e-6
    c = 100 * torch.randn(2, 9, 24)
    modulation = modulation_of(direction, c)
    assert not any(m.any() for m in modulation)
    tokens = direction.poles(*modulation)
    base = token_poles(*direction._base_poles(), eps=direction.eps)
    for pole, at_rest in zip(tokens, base, strict=True):
        assert (pole - at_rest).abs().max() <= 1e-6


@pytest.mark.parametrize('poles', POLES, ids=str)
@pytest.mark.parametrize('fixed_poles', [False, True])
def test_denominator_at_the_start_is_that_of_the_base_poles(
    poles, fixed_poles
):
    reals, pairs = poles
    direction = PoleDirection(
        24,
        num_groups=4,
        num_reals=reals,
        num_pairs=pairs,
        fixed_poles=fixed_poles,
    )
    modulation = modulation_of(direction, torch.randn(2, 5, 24))
    q = direction.denominator(*modulation)
    assert q.shape == (2, 5, 4, reals + 2 * pairs)
    # Equations 5 to 7, written once more.
    rho = 0.99 * direction.rho_hat.sigmoid()
    theta = torch.pi * direction.theta_hat.sigmoid()
    real = 0.99 * direction.real_rho_hat.sigmoid() * direction.sign_hat.tanh()
    compare_with_roots(q, real, rho, theta)
    assert rho.min() > 0.49 and rho.max() < 0.91


def compare_with_roots(q, real, rho, theta):
    """Compare coefficients with those numpy multiplies out of the roots."""
    upper = torch.polar(rho.double(), theta.double())
    roots = torch.cat((real.double() + 0j, upper, upper.conj()), dim=-1)
    groups, order = q.shape[-2:]
    roots = roots.expand(*q.shape[:2], groups, order).detach().numpy()
    for token in itertools.product(*map(range, q.shape[:3])):
        expected = np.poly(roots[token])
        assert np.abs(expected.imag).max() < 1e-9
        np.testing.assert_allclose(
            q[token].detach().numpy(), expected.real[1:], atol=5e-6
        )


@pytest.mark.parametrize('poles', POLES, ids=str)
@pytest.mark.parametrize('group_modulation', [False, True])
def test_denominator_of_modulated_poles(poles, group_modulation):
    reals, pairs = poles
    direction = PoleDirection(
        24,
        num_groups=4,
        num_reals=reals,
        num_pairs=pairs,
        group_modulation=group_modulation,
    )
    disturb(direction)
    modulation = modulation_of(direction, torch.randn(2, 5, 24))
    poles = direction.poles(*modulation)
    assert poles[1].std(dim=1).min() > 1e-3  # they move
    if not group_modulation:
        assert modulation[0].shape == (2, 5, 1)
    compare_with_roots(direction.denominator(*modulation), *poles)


@settings(deadline=None, max_examples=60)
@given(
    hats=st.lists(
        st.floats(-LARGEST, LARGEST, width=32), min_size=4, max_size=4
    ),
    mods=st.lists(
        st.floats(-LARGEST, LARGEST, width=32), min_size=2, max_size=2
    ),
    delta_min=st.floats(0, 0.99),
    eps=st.floats(1e-3, 0.5),
)
def test_no_input_moves_a_pole_beyond_its_bound(hats, mods, delta_min, eps):
    direction = PoleDirection(
        4, num_groups=1, num_pairs=1, eps=eps, delta_min=delta_min
    )
    with torch.no_grad():
        for parameter, value in zip(
            direction._base_poles(), hats, strict=True
        ):
            parameter.fill_(value)
    rho_mod, theta_mod = (torch.full((1, 1, 1), value) for value in mods)
    real, rho, theta = direction.poles(rho_mod, theta_mod)
    bound = (1 - eps) ** delta_min * (1 + 1e-6)
    for radius in (real.abs(), rho):
        assert radius.isfinite().all() and radius.max() <= bound
    assert 0 <= theta.min() and theta.max() <= torch.pi * (1 + 1e-6)
    assert direction.denominator(rho_mod, theta_mod).isfinite().all()


@settings(deadline=None, max_examples=20)
@given(
    scale=st.sampled_from([1e-30, 1.0, 1e4, 1e30]),
    seed=st.integers(0, 2**31),
    delta_0=st.floats(0.6, 4),
)
def test_no_token_moves_a_pole_beyond_its_bound(scale, seed, delta_0):
    torch.manual_seed(seed)
    direction = PoleDirection(
        8, num_groups=2, group_modulation=True, delta_0=delta_0
    )
    disturb(direction, spread=10.0)
    modulation = modulation_of(direction, scale * torch.randn(1, 7, 8))
    bound = 0.99 ** (0.5 / delta_0) * (1 + 1e-6)
    real, rho, _ = direction.poles(*modulation)
    assert real.abs().max() <= bound and rho.max() <= bound


@pytest.mark.parametrize('poles', POLES, ids=str)
@pytest.mark.parametrize('backend', ['reference', 'torch', None])
def test_recurrence_in_float32(poles, backend):
    reals, pairs = poles
    direction = PoleDirection(
        24, num_groups=4, num_reals=reals, num_pairs=pairs
    )
    disturb(direction, spread=0.05)
    with torch.no_grad():
        c = torch.randn(2, 197, 24)
        eta, *modulation = direction.drive(c)
        q = direction.denominator(*modulation)
        exact = pole_scan(eta.double(), q.double(), backend='reference')
        y = pole_scan(eta, q, backend=backend)
    assert (y - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_half_precision_keeps_the_recurrence_in_float32():
    direction = PoleDirection(24, num_groups=4)
    disturb(direction, spread=0.05)
    x, z = torch.randn(2, 2, 50, 24)
    exact = direction(x, z)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        y = direction(x, z)
    error = (y - exact).abs().max() / exact.abs().max()
    assert y.isfinite().all() and error < 0.05


def unclamped_groups(direction):
    """Groups whose residues are those of the direct form."""
    exact = direction._residues_of_direct_form()
    return (direction.residues - exact).abs().amax(1) < 1e-6


@pytest.mark.parametrize('poles', POLES, ids=str)
def test_modal_starts_as_the_direct_form(poles):
    reals, pairs = poles
    options = dict(num_groups=12, num_reals=reals, num_pairs=pairs)
    modal = PoleDirection(24, realization='modal', **options)
    direct = PoleDirection(24, **options)
    weights = modal.state_dict()
    del weights['residues']
    direct.load_state_dict(weights)
    same = unclamped_groups(modal)
    assert same.sum() >= 6
    channels = same.repeat_interleave(2)
    x, z = torch.randn(2, 2, 60, 24)
    expected = direct(x, z)[..., channels]
    error = (modal(x, z)[..., channels] - expected).abs().max()
    assert error <= 1e-4 * expected.abs().max()


def largest_modal_output(direction, residues):
    """Bound of |y| for |eta| <= 1, per group (README of `modal_scan`)."""
    pairs = direction.rho_hat.shape[1]
    reals = direction.order - 2 * pairs
    real, first, second = residues.split((reals, pairs, pairs), dim=-1)
    weights = real.abs().sum(-1) + torch.hypot(first, second).sum(-1)
    radius = (1 - direction.eps) ** (direction.delta_min / direction.delta_0)
    return weights / (1 - radius)


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    delta_min=st.sampled_from([0.05, 0.5]),
    eps=st.sampled_from([0.01, 0.3]),
    greed=st.sampled_from(['output', 'state', 'random']),
)
def test_modal_meets_its_bound_for_every_conditioning(
    seed, delta_min, eps, greed
):
    torch.manual_seed(seed)
    direction = PoleDirection(
        2,
        num_groups=2,
        realization='modal',
        delta_min=delta_min,
        eps=eps,
        lambda_theta=0.9,
    )
    with torch.no_grad():
        for parameter in (*direction._base_poles(), direction.residues):
            parameter.normal_(std=5)
    bound = largest_modal_output(direction, direction.residues.detach())
    # What the adversary may say to a token: each a batch of its own.
    levels = torch.tensor([-50.0, -3.0, 0.0, 3.0, 50.0])
    choices = torch.cartesian_prod(levels, levels, torch.tensor([-1.0, 1.0]))
    rho_mod, theta_mod, eta = choices.unbind(-1)
    with torch.no_grad():
        real, rho, theta = direction.poles(
            rho_mod.view(-1, 1, 1), theta_mod.view(-1, 1, 1)
        )
    poles = [
        pole.squeeze(1)
        for pole in (real, rho * theta.cos(), rho * theta.sin())
    ]
    eta = eta.unsqueeze(-1).expand(-1, 2)
    state, largest = torch.zeros(1, 5, 2), torch.zeros(2)
    for _ in range(40):
        y, states = modal_scan_step(
            state.expand(len(eta), -1, -1), eta, *poles, direction.residues
        )
        largest = torch.maximum(largest, y.detach().abs().amax(0))
        score = {
            'output': y.abs().amax(1),
            'state': states.square().sum((1, 2)),
            'random': torch.rand(len(eta)),
        }[greed]
        state = states[score.argmax()].detach()[None]
    assert (largest <= bound * (1 + 1e-5)).all()
    if greed == 'output':
        # The adversary is worth the name.
        assert (largest > 1e-3 * bound).any()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_groups=5), '`num_groups` = 5; expected a divisor'),
        (dict(num_groups=0), '`num_groups` = 0'),
        (dict(num_reals=0, num_pairs=0), 'expected at least one pole'),
        (dict(num_reals=-1), '`num_reals` = -1'),
        (dict(delta_min=1.0), 'cannot start as the identity'),
        (dict(delta_min=-0.1), '0 <= delta_min'),
        (dict(realization='cascade'), "'cascade'; expected one of"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        PoleMixer(24, **dict(num_groups=4) | options)


def test_number_of_parameters_of_a_pole_mixer():
    mixers = {
        name: PoleMixer(192, **OPTIONS[name])
        for name in ('shared', 'group', 'fixed', '3-real')
    }
    count = {
        name: sum(p.numel() for p in mixer.parameters())
        for name, mixer in mixers.items()
    }
    # Two directions: rows of W_rho and W_theta, and their biases.
    assert count['shared'] - count['fixed'] == 2 * 2 * (384 + 1)
    assert count['group'] - count['shared'] == 2 * 2 * 11 * (384 + 1)
    # A pair has a radius and an angle, as a real pole has radius and sign.
    assert count['3-real'] - count['shared'] == 2 * 12 * 2 * (2 - 1)
