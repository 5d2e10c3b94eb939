"""FLOPs of models: the papers' figures and the count of operators."""

import runpy

import pytest
import torch
from torch import nn

from mmssm.models import TCPVim, Vim
from mmssm.ops import (
    causal_conv1d,
    modal_scan,
    pole_denominator,
    pole_scan,
    selective_scan,
)
from mmssm.utils.flops import (
    FlopCounter,
    count_flops,
    format_report,
    register_flops,
)
from mmssm.utils.flops.handlers import operator_flops
from tests.test_tools.commands import TOOLS, tool

# Of two blocks of the published 24.
SHALLOW = dict(embed_dims=192, depth=2)
POLES = dict(num_reals=1, num_pairs=2, rank=22, num_groups=12)


def published(model, size):
    report = count_flops(model, dict(x=torch.zeros(1, 3, size, size)))
    assert not report.uncounted
    return report.published_ssm


@pytest.mark.parametrize(
    ('model', 'paper', 'exact'),
    [
        pytest.param(Vim(), 497.5, 497.461248, id='vim-tiny'),
        pytest.param(TCPVim(), 295.3, 295.282512, id='t1'),
        pytest.param(
            TCPVim(mixer=dict(fixed_poles=True)), 280.6, 280.63512, id='fixed'
        ),
        pytest.param(
            TCPVim(mixer=dict(group_modulation=True)),
            375.3,
            375.270816,
            id='group-specific',
        ),
        pytest.param(TCPVim('t2'), 459.5, 459.391392, id='t2'),
        pytest.param(
            TCPVim(mixer=dict(num_reals=3, num_pairs=1)),
            295.3,
            295.282512,
            id='t1-3-real-poles',
        ),
    ],
)
def test_figures_of_the_papers_at_224(model, paper, exact):
    flops = published(model, 224) / 1e6
    assert flops == pytest.approx(paper, rel=5e-3)
    assert flops == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    ('cls', 'size', 'exact'),
    [
        (Vim, 512, 2.5858),
        (Vim, 1024, 10.3432),
        (TCPVim, 512, 1.5349),
        (TCPVim, 1024, 6.1395),
    ],
)
def test_figures_of_dense_prediction(cls, size, exact):
    model = cls(
        SHALLOW,
        img_size=size,
        with_cls_token=False,
        out_type='featmap',
        **({'mixer': POLES} if cls is TCPVim else {}),
    )
    flops = 12 * published(model, size) / 1e9
    assert flops == pytest.approx(exact, abs=6e-5)


def test_modal_realization_has_a_figure_too():
    arch = dict(embed_dims=32, depth=1)
    flops = {
        realization: published(
            TCPVim(
                arch,
                mixer=dict(num_groups=4, realization=realization),
                img_size=32,
            ),
            32,
        )
        for realization in ('direct', 'modal')
    }
    # Nine weights of five modes and 5 of the recurrence, against 5; the
    # expansion costs 40 per group.
    tokens, channels, groups = 2 * 5, 64, 4
    difference = tokens * (channels * (9 + 5 - 5) - groups * 40)
    assert flops['modal'] - flops['direct'] == difference


def counted(function, *args, **kwargs):
    model = nn.Identity()
    with FlopCounter(model) as counter, torch.no_grad():
        function(*args, **kwargs)
    assert not counter.report.uncounted
    return counter.report.total


def test_operators_by_hand():
    x = torch.randn(2, 3, 7)
    weight, bias = torch.randn(3, 4), torch.randn(3)
    flops = counted(
        causal_conv1d, x, weight, bias, activation='silu', backend='torch'
    )
    assert flops == 42 * (4 + 4 + 1)
    A, B = -torch.ones(3, 5), torch.randn(2, 5, 7)
    arguments = (x, x, A, B, B)
    flops = counted(selective_scan, *arguments, backend='torch')
    assert flops == 42 * 7 * 5
    flops = counted(
        selective_scan,
        *arguments,
        D=bias,
        z=x,
        delta_bias=bias,
        delta_softplus=True,
        backend='torch',
    )
    assert flops == 42 * (7 * 5 + 2 + 2 + 2)
    eta, q = torch.randn(2, 7, 6), torch.randn(2, 7, 3, 5)
    assert counted(pole_scan, eta, q, backend='torch') == 84 * 10
    real, pair = torch.zeros(2, 7, 3, 1), torch.zeros(2, 7, 3, 2)
    flops = counted(
        modal_scan, eta, real, pair, pair, torch.ones(3, 5), backend='torch'
    )
    assert flops == 84 * (2 + 7 * 2 + 9)


def test_pole_denominator_counts_like_its_parts():
    arguments = dict(
        rho_hat=torch.randn(12, 2),
        theta_hat=torch.randn(12, 2),
        real_rho_hat=torch.randn(12, 1),
        sign_hat=torch.randn(12, 1),
        rho_mod=torch.randn(1, 500, 1),
        theta_mod=torch.randn(1, 500, 1),
    )
    # The torch backend runs as operators of torch, each counted by itself.
    parts = counted(pole_denominator, **arguments, backend='torch')
    names = [*arguments.values(), 0.01, 0.5, 1.0, 0.1, 'native']
    kind, whole = operator_flops(
        torch.ops.mmssm.pole_denominator.default,
        tuple(names),
        {},
        torch.empty(1, 500, 12, 5),
    )
    assert kind == 'operators'
    assert whole == 12 * 11 + 500 * (6 + 12 * (3 + 16 + 16))
    assert parts == pytest.approx(whole, rel=0.15)


def test_layers_of_torch_by_hand():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
        nn.LayerNorm(5),
        nn.Softmax(-1),
    )
    report = count_flops(model, dict(input=torch.randn(2, 3, 6, 6)))
    totals = {name: layer.total for name, layer in report.layers.items()}
    numbers = 2 * 4 * 36
    assert totals['Conv2d'] == numbers * 27 * 2
    assert totals['BatchNorm2d'] == 2 * numbers
    assert totals['ReLU'] == totals['AdaptiveAvgPool2d'] == numbers
    assert totals['Linear'] == 2 * 2 * 4 * 5
    assert totals['LayerNorm'] == 7 * 10
    assert totals['Softmax'] == 5 * 10
    assert model.training and not report.uncounted
    assert report.modules['Linear'] == 1


class Strange(nn.Module):
    """A layer whose operator nobody counts."""

    def forward(self, x):
        return torch.fft.fft(x).real


def test_what_is_not_counted_is_named():
    report = count_flops(Strange(), dict(x=torch.randn(2, 4)))
    assert report.uncounted == {'aten::_fft_r2c': 1}
    assert 'NOT COUNTED: aten::_fft_r2c (1 calls)' in format_report(report)


class OtherMixer(nn.Module):
    """A mixer over maps, as another model may bring it."""

    def ssm_flops(self, height, width):
        return 100 * height * width

    def forward(self, x):
        return x


def test_other_mixers_bring_their_own_rule():
    model = nn.Sequential(OtherMixer(), OtherMixer())
    report = count_flops(model, dict(input=torch.zeros(3, 5, 7, 2)))
    assert report.published_ssm == 2 * 3 * 35 * 100


def test_bad_use_is_refused():
    with pytest.raises(ValueError, match='pole_scan has a handler'):
        register_flops('mmssm::pole_scan')(lambda arguments, output: 0)
    model = OtherMixer()
    with pytest.raises(TypeError, match='OtherMixer.*first positional'):
        count_flops(model, dict(x=torch.zeros(1, 2, 2, 2)))


def test_every_operator_has_a_handler():
    names = {
        name.removeprefix('mmssm::').partition('.')[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith('mmssm::')
    }
    forward = {name for name in names if not name.endswith('_backward')}
    assert {'selective_scan', 'pole_scan', 'ssd_step'} <= forward
    for name in forward:
        with pytest.raises(ValueError, match='has a handler already'):
            register_flops(f'mmssm::{name}')(lambda arguments, output: 0)


CONFIG = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmssm.Vim', arch=dict(embed_dims=32, depth=2), img_size=(64, 48)
    ),
    head=dict(type='LinearClsHead', num_classes=5, in_channels=32),
)
"""


def test_tool(tmp_path):
    pytest.importorskip('mmpretrain')
    path = tmp_path / 'vim.py'
    path.write_text(CONFIG)
    output = tool(
        'analysis_tools/get_flops.py',
        path,
        *('--shape', '96', '--cfg-options', 'model.head.num_classes=7'),
        cwd=tmp_path,
    )
    assert 'input: 96 x 96' in output
    assert 'SelectiveScanDirection' in output
    # 37 tokens, 64 channels, 4 scans.
    assert f'SSM FLOPs, the papers: {37 * 64 * 117 * 4 / 1e6:.3f} M' in output
    assert 'every operator was counted' in output


def test_tool_takes_a_backbone_alone(tmp_path):
    path = tmp_path / 'vim.py'
    path.write_text(
        "model = dict(type='Vim', arch=dict(embed_dims=32, depth=1), "
        'img_size=(32, 48), in_channels=1)\n'
    )
    output = tool('analysis_tools/get_flops.py', path, cwd=tmp_path)
    assert 'input: 32 x 48' in output
    assert f'SSM FLOPs, the papers: {7 * 64 * 117 * 2 / 1e6:.3f} M' in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        (
            'surgical_mamba/surgical-mamba_tiny_sample.py',
            ['PerHeadMLP', 'no layer says', 'every operator was counted'],
        ),
        (
            'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
            ['RPNHead', 'NOT COUNTED: torchvision::nms'],
        ),
        (
            'mmseg::upernet/upernet_r50_4xb2-40k_cityscapes-512x1024.py',
            ['PPM', 'every operator was counted'],
        ),
    ],
)
def test_tool_on_other_tasks(tmp_path, name, expected):
    package = name.partition('::')[0] if '::' in name else 'timm'
    pytest.importorskip(package)
    pretrained = 'model.backbone.init_cfg=None'
    output = tool(
        'analysis_tools/get_flops.py',
        name,
        *('--shape', '224', '--cfg-options', pretrained),
        cwd=tmp_path,
    )
    for text in expected:
        assert text in output


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['none.py'], 'none.py'),
        (['vim.py', '--shape', '1', '2', '3'], '--shape: expected one or two'),
        (['empty.py'], 'has no `model`'),
    ],
)
def test_tool_explains_bad_arguments(
    tmp_path, monkeypatch, capsys, arguments, message
):
    (tmp_path / 'vim.py').write_text(CONFIG)
    (tmp_path / 'empty.py').write_text('a = 1\n')
    monkeypatch.chdir(tmp_path)
    script = TOOLS / 'analysis_tools/get_flops.py'
    monkeypatch.setattr('sys.argv', [str(script), *arguments])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(script), run_name='__main__')
    assert exit_info.value.code != 0
    assert message in capsys.readouterr().err
