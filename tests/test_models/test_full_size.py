"""The published Cholec80 model: sizes, trainable parameters, converter."""

import subprocess
import sys

import pytest
import torch

import mmssm.models  # noqa: F401  fills the registry
from mmssm.registry import MODELS
from tests.test_models.golden import ROOT, load_converter

pytest.importorskip('timm')


@pytest.fixture(scope='module')
def model():
    return MODELS.build(
        dict(
            type='PhaseRecognizer',
            backbone=dict(
                type='TimmBackbone',
                model_name='convnext_tiny',
                frozen_stages=2,
            ),
            temporal=dict(type='SurgicalMamba'),
            head=dict(
                type='PhaseHead',
                in_channels=768,
                num_classes=7,
                loss_cls=dict(type='PhaseCrossEntropyLoss'),
            ),
        )
    )


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts(model):
    assert count(model) == 198_556_403
    assert count(model.backbone) == 27_820_128
    assert count(model.temporal.visual_proj) == 592_128
    assert count(model.temporal.blocks) == 150_280_516
    assert count(model.head) == 19_862_095
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trainable == 197_319_827


def test_initial_values(model):
    mixer = model.temporal.blocks[0].mixer
    for path, low, high in ((mixer.slow, 1e-4, 2e-2), (mixer.fast, 1e-3, 0.1)):
        dt = torch.nn.functional.softplus(path.dt_proj.bias)
        assert low * 0.9 < dt.min() and dt.max() < high * 1.1
        assert 0 <= path.A_log.min() and path.A_log.max() <= 4.16  # log 64
    bias = mixer.slow.regramming.uv_mlp.b2.view(24, 2, 64 * 16)
    torch.testing.assert_close(bias.norm(dim=-1), torch.full((24, 2), 16.0))
    gram = bias[:, 0] @ bias[:, 0].T / 256
    torch.testing.assert_close(gram, torch.eye(24), atol=1e-4, rtol=0)


def test_frozen_stages_stay_in_evaluation_mode(model):
    model.train()
    backbone = model.backbone.model
    assert not backbone.stages[1].training and backbone.stages[2].training
    assert not any(p.requires_grad for p in backbone.stem.parameters())


def test_converter_reads_what_it_reverses(model, tmp_path):
    converter = load_converter()
    ours = model.state_dict()
    published = converter.reverse(ours)
    assert 'blocks.3.mamba.S_mlp_slow.W2' in published
    assert 'output_head.blocks.0.UV_mlp.b2' in published
    assert 'backbone.stages.2.blocks.8.gamma' in published
    for i in range(4):  # the buffers the published files have besides
        published[f'blocks.{i}.mamba._T_identity'] = torch.eye(64)
    back = converter.convert(published)
    assert back.keys() == ours.keys()
    assert all(back[key] is ours[key] for key in ours)


def test_converter_command(tmp_path):
    published = {
        'visual_proj.0.bias': torch.zeros(4),
        'frame_norm.weight': torch.arange(4.0),
        'blocks.0.ffn_norm.bias': torch.zeros(4),
        'blocks.1.ffn_norm.bias': torch.zeros(4),
        'blocks.0.mamba._T_identity': torch.eye(2),
        'output_head.head.bias': torch.zeros(3),
    }
    source, target = tmp_path / 'theirs.pth', tmp_path / 'ours.pth'
    torch.save({'model': published, 'epoch': 3}, source)
    script = str(ROOT / 'tools/model_converters/surgical_mamba_to_mmssm.py')

    def run(*args):
        return subprocess.run(
            [sys.executable, script, *map(str, args)],
            capture_output=True,
            text=True,
        )

    assert run(source, target).returncode == 0
    weights = torch.load(target, weights_only=True)['state_dict']
    assert len(weights) == 5 and 'head.fc.bias' in weights
    assert torch.equal(
        weights['temporal.frame_norm.weight'], torch.arange(4.0)
    )

    back = tmp_path / 'back.pth'
    assert run(target, back, '--reverse').returncode == 0
    assert 'output_head.head.bias' in torch.load(back)['model']

    published['blocks.0.mamba.unheard_of'] = torch.zeros(1)
    torch.save({'model': published}, source)
    failed = run(source, tmp_path / 'none.pth')
    assert failed.returncode != 0
    assert 'blocks.0.mamba.unheard_of' in failed.stderr
    assert not (tmp_path / 'none.pth').exists()

    del published['blocks.0.mamba.unheard_of']
    del published['blocks.1.ffn_norm.bias']
    published['blocks.1.ffn_norm.weight'] = torch.zeros(4)
    torch.save({'model': published}, source)
    failed = run(source, tmp_path / 'none.pth')
    assert failed.returncode != 0
    assert 'blocks.1.ffn_norm.bias' in failed.stderr
    torch.save({'model': {}}, source)
    failed = run(source, tmp_path / 'none.pth')
    assert failed.returncode != 0 and 'visual_proj' in failed.stderr
    assert not (tmp_path / 'none.pth').exists()

    missing = run(tmp_path / 'nowhere.pth', target)
    assert missing.returncode != 0 and 'nowhere.pth' in missing.stderr


def test_converter_refuses_what_is_no_state_dict(tmp_path):
    path = tmp_path / 'odd.pth'
    torch.save({'model': {'a': 1}}, path)
    with pytest.raises(ValueError, match='no state dict'):
        load_converter().load_weights(path)
