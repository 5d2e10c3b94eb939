"""Visual backbones: ours, timm's and mmpretrain's."""

import subprocess
import sys

import pytest
import torch

import mmssm.models  # noqa: F401  fills the registry
from mmssm.registry import MODELS


def recognizer(backbone, in_channels):
    return MODELS.build(
        dict(
            type='PhaseRecognizer',
            clip_len=3,
            backbone=backbone,
            temporal=dict(
                type='Framewise', in_channels=in_channels, d_model=8
            ),
            head=dict(
                type='LinearPhaseHead',
                in_channels=8,
                num_classes=4,
                loss_cls=dict(type='PhaseCrossEntropyLoss'),
            ),
        )
    )


def test_strided_conv_net():
    backbone = MODELS.build(dict(type='StridedConvNet', channels=(4, 8)))
    (features,) = backbone(torch.randn(2, 3, 17, 32))
    assert features.shape == (2, 8, 5, 8)
    assert backbone.out_channels == 8


def test_timm_backbone_of_another_kind():
    pytest.importorskip('timm')
    model = recognizer(
        dict(type='TimmBackbone', model_name='resnet10t'), in_channels=512
    )
    assert model(torch.randn(1, 1, 3, 3, 64, 64)).shape == (1, 1, 3, 4)


def test_timm_checkpoint_from_a_local_file(tmp_path):
    timm = pytest.importorskip('timm')
    source = timm.create_model('convnext_atto', num_classes=5)
    torch.save(source.state_dict(), tmp_path / 'weights.pth')
    backbone = MODELS.build(
        dict(
            type='TimmBackbone',
            model_name='convnext_atto',
            checkpoint=str(tmp_path / 'weights.pth'),
            pretrained=True,  # the file goes first: nothing is fetched
        )
    )
    weight = backbone.model.stem[0].weight
    assert not torch.equal(weight, source.stem[0].weight)
    backbone.init_weights()
    torch.testing.assert_close(weight, source.stem[0].weight)


def test_building_fetches_nothing_and_training_does(monkeypatch):
    timm = pytest.importorskip('timm')
    asked = []
    create_model = timm.create_model

    def fake(name, pretrained=False, **kwargs):
        asked.append(pretrained)
        return create_model(name, pretrained=False, **kwargs)

    monkeypatch.setattr(timm, 'create_model', fake)
    backbone = MODELS.build(
        dict(type='TimmBackbone', model_name='convnext_atto', pretrained=True)
    )
    before = backbone.model.stem[0].weight.clone()
    assert asked == [False]
    backbone.init_weights()
    assert asked == [False, True]
    assert not torch.equal(backbone.model.stem[0].weight, before)


def test_every_trainable_parameter_of_a_timm_backbone_is_used():
    pytest.importorskip('timm')
    backbone = MODELS.build(
        dict(type='TimmBackbone', model_name='convnext_atto', frozen_stages=1)
    ).train()
    (features,) = backbone(torch.randn(2, 3, 64, 64))
    features.square().mean().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), name


def test_mmpretrain_backbone():
    pytest.importorskip('mmpretrain')
    model = recognizer(
        dict(type='mmpretrain.ConvNeXt', arch='atto', gap_before_final_norm=0),
        in_channels=320,
    )
    assert model(torch.randn(1, 2, 3, 3, 64, 64)).shape == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ('backbone', 'message'),
    [
        (dict(model_name='convnext_tyni'), 'not known to timm'),
        (dict(model_name='resnet10t', frozen_stages=1), 'no stem and stages'),
    ],
)
def test_bad_timm_arguments(backbone, message):
    pytest.importorskip('timm')
    with pytest.raises(ValueError, match=message):
        MODELS.build(dict(type='TimmBackbone', **backbone))


def test_without_timm_the_message_names_the_extra():
    code = (
        'import sys; sys.modules["timm"] = None\n'
        'import mmssm.models\n'
        'from mmssm.registry import MODELS\n'
        'MODELS.build(dict(type="TimmBackbone"))\n'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    )
    assert result.returncode != 0
    assert 'pip install "mmssm[mmcls]"' in result.stderr
