"""The hook that watches the poles: what it logs, and when it warns."""

import json
import logging
import re

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmssm.analysis import (
    StabilityReport,
    find_pole_directions,
    measure_stability,
)
from mmssm.engine.hooks import PoleStabilityHook, pole_stability_hook
from mmssm.engine.hooks.pole_stability_hook import find_trouble, summarize
from mmssm.models import TCPVim, Vim
from mmssm.registry import HOOKS


class Classifier(BaseModel):
    """A backbone whose first two features are the logits."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.watched = []

    def forward(self, inputs, labels, mode='tensor'):
        """Also note how many layers are watched."""
        directions = find_pole_directions(self).values()
        self.watched.append(sum(len(d._forward_hooks) for d in directions))
        logits = self.backbone(inputs)[0][:, :2]
        if mode == 'loss':
            return dict(loss=torch.nn.functional.cross_entropy(logits, labels))
        return logits


class NoMetric:
    """An evaluator that the loops accept and that measures nothing."""

    def process(self, **_):
        """Take a batch."""

    def evaluate(self, _):
        """Measure nothing."""
        return {}


def make_backbone(cls=TCPVim, **kwargs):
    if cls is TCPVim:
        options = dict(num_groups=4, rank=4, backend='torch')
        kwargs['mixer'] = {**options, **kwargs.get('mixer', {})}
    return cls(
        dict(embed_dims=16, depth=2), img_size=16, patch_size=4, **kwargs
    )


def run(backbone, tmp_path, test=False, **options):
    """Train for four iterations, or test; returns runner and hook."""
    samples = [(torch.randn(3, 16, 16), i % 2) for i in range(8)]
    loader = DataLoader(samples, batch_size=2)
    runner = Runner(
        model=Classifier(backbone),
        work_dir=str(tmp_path),
        train_dataloader=loader,
        train_cfg=dict(by_epoch=False, max_iters=4),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1e-3)),
        test_dataloader=loader,
        test_cfg=dict(type='TestLoop'),
        test_evaluator=NoMetric(),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1), checkpoint=None
        ),
        custom_hooks=[dict(type='PoleStabilityHook', **options)],
        default_scope='mmssm',
        experiment_name=f'poles_{tmp_path.name}',
    )
    runner.test() if test else runner.train()
    hook = next(h for h in runner.hooks if isinstance(h, PoleStabilityHook))
    return runner, hook


def read_warnings(caplog, tmp_path):
    logs = [path.read_text() for path in tmp_path.rglob('*.log')]
    lines = '\n'.join([caplog.text, *logs]).splitlines()
    return [
        line for line in lines if re.search('PoleStabilityHook( \\(|:)', line)
    ]


def test_is_registered_in_a_foreign_scope():
    assert HOOKS.get('PoleStabilityHook') is PoleStabilityHook


def test_logs_at_the_interval_only(tmp_path, caplog):
    runner, _ = run(make_backbone(), tmp_path, interval=2, num_patterns=4)
    assert runner.model.watched == [0, 4, 0, 4]
    scalars = [
        json.loads(line)
        for path in tmp_path.rglob('scalars.json')
        for line in path.read_text().splitlines()
    ]
    layer = 'backbone.layers.1.mixer.backward_scan'
    name = f'poles_train/{layer}/max_output'
    written = {row['step']: row[name] for row in scalars if name in row}
    assert sorted(written) == [2, 4]
    history = runner.message_hub.get_scalar('train/poles_max_output')
    assert history.current() >= written[4] > 0
    growth = runner.message_hub.get_scalar('train/poles_max_growth')
    assert 0 < growth.current() < 1
    assert not read_warnings(caplog, tmp_path)


def test_measures_the_first_batch_of_a_test(tmp_path):
    runner, _ = run(make_backbone(), tmp_path, test=True, num_patterns=4)
    assert runner.model.watched == [4, 0, 0, 0]
    assert runner.message_hub.get_scalar('test/poles_max_radius').current() < 1


def test_measures_once_under_activation_checkpointing(tmp_path, monkeypatch):
    measured = []

    def measure(direction, *args):
        measured.append(direction)
        return measure_stability(direction, *args)

    monkeypatch.setattr(pole_stability_hook, 'measure_stability', measure)
    backbone = make_backbone(with_cp=True)
    run(backbone, tmp_path, interval=4, num_patterns=4)
    assert len(measured) == 4 == len(set(measured))


def test_warns_of_divergence(tmp_path, caplog):
    mixer = dict(delta_min=0.01, lambda_theta=0.9, num_reals=3, num_pairs=1)
    backbone = make_backbone(mixer=mixer)
    for direction in find_pole_directions(backbone).values():
        torch.nn.init.normal_(direction.x_proj.weight[-2:], std=5.0)
    with caplog.at_level(logging.WARNING):
        run(backbone, tmp_path, interval=4)
    (line,) = {
        line.partition('PoleStabilityHook')[2]
        for line in read_warnings(caplog, tmp_path)
        if 'times per token' in line
    }
    assert "realization='modal'" in line


def test_warns_where_the_model_has_no_poles(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run(make_backbone(Vim), tmp_path, interval=4)
    assert 'no layer with poles' in ''.join(read_warnings(caplog, tmp_path))


def test_warns_where_no_layer_calls_its_hooks(tmp_path, caplog, monkeypatch):
    def forward(self, x):
        return (x.flatten(1)[:, :16] * self.norm_f.weight,)

    monkeypatch.setattr(TCPVim, 'forward', forward)
    with caplog.at_level(logging.WARNING):
        run(make_backbone(), tmp_path, interval=4)
    assert 'nothing was measured' in ''.join(read_warnings(caplog, tmp_path))


@pytest.mark.parametrize('options', [dict(interval=0), dict(num_patterns=0)])
def test_refuses_numbers_that_are_not_positive(options):
    with pytest.raises(ValueError, match='expected at least 1'):
        PoleStabilityHook(**options)


LIMITS = dict(max_output=10.0, radius_max=0.99, growth_max=1.0)


def report(max_output=1.0, radius=0.9, share=0.0, growth=0.9):
    return StabilityReport(
        max_output, radius, radius, radius, radius, share, growth
    )


def test_summary_is_of_the_worst_layer():
    reports = dict(a=report(2.0), b=report(1.0, 0.95, 0.25, 1.5))
    assert summarize(reports) == dict(
        max_output=2.0, max_radius=0.95, max_growth=1.5, growth_share=0.25
    )
    modal = report(share=None, growth=None)
    assert set(summarize(dict(a=modal))) == {'max_output', 'max_radius'}
    broken = summarize(dict(a=report(float('nan')), b=report()))
    assert broken['max_output'] != broken['max_output']


def test_trouble_names_the_worst_layer():
    assert find_trouble(dict(a=report()), LIMITS) == []
    reports = dict(
        a=report(11.0), b=report(12.0), c=report(radius=0.995), d=report()
    )
    outputs, radii = find_trouble(reports, LIMITS)
    assert '|y| = 12 in b' in outputs and '2 of 4 layers' in outputs
    assert '0.99500 in c' in radii
    (growing,) = find_trouble(
        dict(a=report(share=0.25, growth=1.5), b=report()), LIMITS
    )
    assert '1.5000 times per token in a (25.00% ' in growing


@pytest.mark.parametrize('value', [float('inf'), float('nan')])
def test_trouble_of_numbers_that_are_not_finite(value):
    reports = dict(a=report(), b=report(value))
    (message,) = find_trouble(reports, LIMITS)
    assert 'not finite in 1 of 2 layers, first in b' in message
