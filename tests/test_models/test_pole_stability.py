"""What keeps the pole recurrence finite, and what does not."""

import copy

import pytest
import torch
import torch.nn.functional as F

from mmssm.analysis import (
    base_poles,
    companion_matrices,
    draw_patterns,
    find_pole_directions,
    growth_per_token,
    measure_stability,
    pole_radii,
    recurrence_output,
    sample_growth,
    spectral_radii,
)
from mmssm.datasets import Digits
from mmssm.models import TCPVim
from mmssm.models.layers.pole_direction import PoleDirection
from mmssm.ops import pole_denominator, pole_scan

WIDE = dict(delta_min=0.01, lambda_theta=0.9)


def repeat_pattern(pattern, times):
    """Impulse response of the recurrence over a repeated pattern."""
    q = pattern.repeat(times, 1)[None, :, None]
    eta = q.new_zeros(1, q.shape[1], 1)
    eta[:, 0] = 1
    return pole_scan(eta, q, backend='reference')[0, :, 0]


def random_coefficients(count, length, mods=4.0, **options):
    """Coefficients of tokens with modulation of a given spread."""
    radii = torch.logit(torch.empty(1, 2).uniform_(0.5, 0.9))
    angles = torch.logit(torch.tensor([[0.25, 0.75]]))
    real = torch.logit(torch.empty(1, 1).uniform_(0.5, 0.9))
    base = (radii, angles, real, torch.tensor([[1.5]]))
    modulation = mods * torch.randn(2, count, length, 1)
    return pole_denominator(
        *(t.double() for t in (*base, *modulation)), **options
    )


def test_companion_matrix_is_one_step_of_the_recurrence():
    q = random_coefficients(1, 7)[0, :, 0]
    y = pole_scan(
        torch.zeros(1, 7, 1, dtype=q.dtype),
        q[None, :, None],
        initial_history=torch.ones(1, 5, 1, dtype=q.dtype),
        backend='reference',
    )[0, :, 0]
    history = torch.ones(5, dtype=q.dtype)
    for matrix, value in zip(companion_matrices(q), y, strict=True):
        history = matrix @ history
        torch.testing.assert_close(history[0], value)


@pytest.mark.parametrize('period', [1, 2, 5])
def test_growth_is_that_of_the_simulated_recurrence(period):
    patterns = random_coefficients(20, period, **WIDE)[:, :, 0]
    growth = growth_per_token(patterns)
    assert growth.min() < 1
    for pattern, rate in zip(patterns, growth, strict=True):
        times = 400 // period
        y = repeat_pattern(pattern, times).abs()
        quarters = y.unflatten(0, (4, -1)).amax(1)
        simulated = (quarters[3] / quarters[1]) ** (2 / len(y))
        assert abs(simulated - rate) < 0.03 * rate


def test_growth_sees_the_order_of_processing():
    pattern = torch.tensor(
        [[-1.8, 0.3, 0.2], [0.5, -0.6, 0.1], [0.2, 0.9, -0.3]]
    ).double()
    forward, backward = (
        growth_per_token(p[None]) for p in (pattern, pattern.flip(0))
    )
    assert abs(forward - backward) > 0.01
    y = repeat_pattern(pattern, 60).abs()
    simulated = (y[90:].max() / y[:90].max()) ** (1 / 90)
    assert abs(simulated - forward) < 0.5 * abs(forward - backward)


def test_spectral_radii():
    matrices = torch.randn(50, 5, 5, dtype=torch.float64)
    # Nilpotent, defective, and too small for an eigenvalue solver.
    matrices[0] = torch.triu(matrices[0], 1)
    matrices[1] = torch.eye(5) + torch.diag(torch.ones(4), 1)
    matrices[2] *= 1e-200
    expected = torch.linalg.eigvals(matrices).abs().amax(-1)
    radii = spectral_radii(matrices)
    assert radii[0] == 0
    torch.testing.assert_close(radii[1:], expected[1:], rtol=1e-6, atol=0)
    assert spectral_radii(matrices[:0]).shape == (0,)


def test_growth_of_broken_coefficients_is_not_a_number():
    patterns = torch.zeros(3, 2, 2)
    patterns[1, 0, 0] = torch.inf
    growth = growth_per_token(patterns)
    assert growth.isnan().tolist() == [False, True, False]
    assert growth_per_token(patterns[1:2]).isnan().all()


@pytest.mark.parametrize('reverse', [False, True])
def test_patterns_are_windows_and_mixes(reverse):
    # Coefficients that say where they are from: image, token, group.
    batch, length, groups = 3, 11, 4
    axes = (torch.arange(n) for n in (batch, length, groups))
    q = torch.stack(torch.meshgrid(*axes, indexing='ij'), dim=-1).float()
    patterns = draw_patterns(q, 200, 4, reverse)
    assert patterns.shape == (200, 4, 3)
    image, token, group = patterns.unbind(-1)
    assert (group == group[:, :1]).all()
    assert (image[:100] == image[:100, :1]).all()
    step = -1 if reverse else 1
    assert (token[:100].diff() == step).all()
    assert {0, length - 1} <= set(token[:100].flatten().tolist())
    assert (image[100:] != image[100:, :1]).any()
    # Shorter than the period: some tokens twice, none from outside.
    short = draw_patterns(q[:, :2], 10, 4, reverse)
    assert short[..., 1].max() <= 1


def make_direction(**options):
    return PoleDirection(16, rank=4, num_groups=4, backend='torch', **options)


def perturb(model, scale=1.0):
    """Modulate the poles as strongly as a long training might."""
    for direction in find_pole_directions(model).values():
        mods = 2 * direction.num_modulations
        torch.nn.init.normal_(direction.x_proj.weight[-mods:], std=scale)
    return model


@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('realization', ['direct', 'modal'])
@pytest.mark.parametrize('fixed_poles', [False, True])
def test_report_of_a_direction(reverse, realization, fixed_poles):
    direction = make_direction(
        reverse=reverse, realization=realization, fixed_poles=fixed_poles
    )
    if not fixed_poles:
        perturb(direction)
    x, z = torch.randn(2, 2, 30, 16)
    report = measure_stability(direction, x, num_patterns=20)
    # out = (y + D c) * silu(z): without the skip, and a gate of 1.
    with torch.no_grad():
        direction.D.zero_()
        gate = torch.full_like(z, 50.0)
        y = direction(x, gate) / F.silu(gate)
    assert report.max_output == pytest.approx(float(y.abs().max()), rel=1e-5)
    base = pole_radii(*base_poles(direction)[:2])
    assert report.base_radius_max == pytest.approx(base.max().item())
    assert report.base_radius_mean == pytest.approx(base.mean().item())
    if fixed_poles:
        assert report.radius_max == pytest.approx(report.base_radius_max)
        assert report.radius_mean == pytest.approx(report.base_radius_mean)
    else:
        assert report.radius_max > report.base_radius_max
        assert report.radius_max <= 0.99**0.5
    assert (report.growth_share is None) == (realization == 'modal')
    if realization == 'direct' and fixed_poles:
        assert report.growth_max <= report.base_radius_max + 1e-6
    assert report.is_finite()


def test_report_of_a_divergent_direction_is_not_finite():
    direction = make_direction()
    with torch.no_grad():
        direction.up_proj.weight.fill_(torch.inf)
    report = measure_stability(direction, torch.randn(1, 9, 16), 4)
    assert not report.is_finite()


def test_wide_modulation_diverges_on_a_repeated_pattern():
    """Stable poles of every token do not bound the direct form."""
    direction = perturb(make_direction(**WIDE), scale=2.0)
    c = torch.randn(1, 400, 16)
    with torch.no_grad():
        _, *modulation = direction.drive(c)
        q = direction.denominator(*modulation)
        radii = pole_radii(*direction.poles(*modulation)[:2])
        patterns = draw_patterns(q, 2000, 4)
        growth = growth_per_token(patterns)
    assert radii.max() < 1
    worst = growth.argmax()
    assert growth[worst] > 1.05
    y = repeat_pattern(patterns[worst], 1500)
    assert not y.isfinite().all() or y.abs().max() > 1e20


@pytest.mark.parametrize('spread', [1.0, 100.0])
def test_default_bounds_grow_on_few_patterns_and_slowly(spread):
    narrow, wide = (
        sample_growth(random_coefficients(4, 100, spread, **options), 400)
        for options in ({}, WIDE)
    )
    assert (narrow > 1).double().mean() < 0.1 * (wide > 1).double().mean()
    assert narrow.max() < wide.max()


@pytest.mark.parametrize('options', [{}, WIDE])
def test_modal_realization_never_exceeds_its_bound(options):
    direction = make_direction(realization='modal', **options)
    perturb(direction, scale=5.0)
    tokens = torch.randn(1, 6, 16)
    for pattern in ([0, 1], [0, 1, 2], [5, 0, 5, 3], [0], range(6)):
        x = tokens[:, list(pattern)].repeat(1, 2000 // len(pattern), 1)
        with torch.no_grad():
            eta, *modulation = direction.drive(direction.convolve(x))
            y = recurrence_output(direction, eta, *modulation)
            real, rho, _ = direction.poles(*modulation)
            residues = direction.residues.double()
        first, re, im = residues.split((1, 2, 2), dim=-1)
        weights = torch.cat((first.abs(), torch.hypot(re, im)), -1).sum(-1)
        # One radius and one drive for each group: tighter than the largest.
        radius = pole_radii(real, rho).double().amax((0, 1, 3))
        drive = eta.abs().double().amax((0, 1)).unflatten(0, (4, 4))
        bound = (weights / (1 - radius))[:, None] * drive
        reached = y.abs().double().amax((0, 1)).unflatten(0, (4, 4))
        assert (reached <= bound * (1 + 1e-5)).all()


def images_that_repeat(size):
    """Stripes, tiles, checkerboards, noise and constants, ``(n, 1, h, w)``."""
    rows, columns = torch.meshgrid(
        torch.arange(size), torch.arange(size), indexing='ij'
    )
    images = [
        torch.full((size, size), value) for value in (-1.0, 0.0, 1.0, 10.0)
    ]
    for period in (2, 4, 8, 12, 24):
        half = period // 2
        stripes = [
            (phase % period < half) * 2.0 - 1
            for phase in (columns, rows, columns + rows)
        ]
        images += [*stripes, stripes[0] * stripes[1]]
    for period in (4, 8, 12, 20):
        tile = torch.randn(period, period)
        times = -(-size // period)
        images.append(tile.repeat(times, times)[:size, :size])
    images += [scale * torch.randn(size, size) for scale in (0.5, 1.0, 5.0)]
    return torch.stack(images)[:, None]


def make_backbone(**mixer):
    return TCPVim(
        dict(embed_dims=16, depth=2),
        img_size=32,
        patch_size=4,
        in_channels=1,
        out_type='raw',
        mixer=dict(num_groups=4, rank=8, **mixer),
    )


def train_on_digits(model, epochs):
    """A few epochs; returns the share of right answers in the last one."""
    digits = Digits('train')
    images = torch.stack([torch.from_numpy(s['img']) for s in digits])
    labels = torch.tensor([s['gt_label'] for s in digits])
    images = (images.float()[:, None] - 78) / 96
    images = F.interpolate(images, size=32, mode='bilinear')
    head = torch.nn.Linear(model.embed_dims, 10)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=4e-3)
    for _ in range(epochs):
        right = 0
        for batch in torch.randperm(len(images)).split(64):
            logits = head(model(images[batch])[0].mean(1))
            loss = F.cross_entropy(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            right += int((logits.argmax(1) == labels[batch]).sum())
    return right / len(images)


@torch.no_grad()
def largest_output(model, images):
    """Largest ``|y|`` of all recurrences; the tokens must be finite."""
    reports = []
    handles = [
        direction.register_forward_hook(
            lambda d, inputs, _: reports.append(
                measure_stability(d, inputs[0], num_patterns=2)
            )
        )
        for direction in find_pole_directions(model).values()
    ]
    assert model(images)[0].isfinite().all()
    for handle in handles:
        handle.remove()
    assert len(reports) == 4 and all(r.is_finite() for r in reports)
    return max(report.max_output for report in reports)


@pytest.mark.parametrize('realization', ['direct', 'modal'])
def test_perturbed_model_stays_finite_on_images_that_repeat(realization):
    model = perturb(make_backbone(realization=realization), scale=0.5).eval()
    assert largest_output(model, images_that_repeat(64)) < 1e3


@pytest.mark.slow
@pytest.mark.parametrize('mixer', [{}, dict(num_reals=3, num_pairs=1)])
def test_trained_model_stays_finite_on_16k_tokens(mixer):
    model = make_backbone(**mixer)
    untrained = copy.deepcopy(model)
    assert train_on_digits(model, epochs=6) > 0.8
    moved = [
        d.x_proj.weight[-2:].abs().max().item()
        for d in find_pole_directions(model).values()
    ]
    assert min(moved) > 0.01  # the tokens modulate the poles
    model.eval()
    assert largest_output(untrained, images_that_repeat(64)) < 1e3
    for size in (96, 512):
        for images in images_that_repeat(size).split(8):
            assert largest_output(model, images) < 1e4


@pytest.mark.slow
def test_trained_model_with_wide_modulation_diverges():
    """What the default bounds and the hook are for."""
    model = make_backbone(delta_min=0.1, lambda_theta=0.5)
    assert train_on_digits(model, epochs=8) > 0.8
    patterns = []

    def draw(direction, inputs, _):
        _, *modulation = direction.drive(direction.convolve(inputs[0]))
        q = direction.denominator(*modulation)
        patterns.append(draw_patterns(q, 4000, 4, direction.reverse))

    for direction in find_pole_directions(model).values():
        direction.register_forward_hook(draw)
    with torch.no_grad():
        model(torch.randn(8, 1, 32, 32))
    patterns = torch.cat(patterns)
    growth = growth_per_token(patterns)
    assert growth.max() > 1.05
    y = repeat_pattern(patterns[growth.argmax()], 1500)
    assert not y.isfinite().all() or y.abs().max() > 1e20
