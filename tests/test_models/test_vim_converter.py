"""Converting published Vim checkpoints."""

import argparse

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmssm.models import Vim
from mmssm.models.layers.position_embed import resize_position_embed
from tests.test_models.golden import Golden, load_converter
from tests.test_tools.commands import tool

converter = load_converter('vim_to_mmssm')
SCRIPT = 'model_converters/vim_to_mmssm.py'
FILES = ['open_vim_square', 'open_vim_rect', 'open_vim_stride8']
WIDTHS = {'tiny': 192, 'small': 384, 'base': 768}


def published_shapes(width, depth, patches, num_classes=1000):
    """Names and shapes of a published checkpoint with mixer v2."""
    inner, rank, state = 2 * width, -(-width // 16), 16
    shapes = {
        'cls_token': (1, 1, width),
        'pos_embed': (1, patches + 1, width),
        'patch_embed.proj.weight': (width, 3, 16, 16),
        'patch_embed.proj.bias': (width,),
        'norm_f.weight': (width,),
        'head.weight': (num_classes, width),
        'head.bias': (num_classes,),
    }
    for i in range(depth):
        mixer = f'layers.{i}.mixer'
        shapes[f'layers.{i}.norm.weight'] = (width,)
        shapes[f'{mixer}.in_proj.weight'] = (2 * inner, width)
        shapes[f'{mixer}.out_proj.weight'] = (width, inner)
        for suffix, log in (('', 'A_log'), ('_b', 'A_b_log')):
            shapes[f'{mixer}.conv1d{suffix}.weight'] = (inner, 1, 4)
            shapes[f'{mixer}.conv1d{suffix}.bias'] = (inner,)
            shapes[f'{mixer}.x_proj{suffix}.weight'] = (
                rank + 2 * state,
                inner,
            )
            shapes[f'{mixer}.dt_proj{suffix}.weight'] = (inner, rank)
            shapes[f'{mixer}.dt_proj{suffix}.bias'] = (inner,)
            shapes[f'{mixer}.{log}'] = (inner, state)
            shapes[f'{mixer}.D{suffix}'] = (inner,)
    return shapes


def published(width=48, depth=2, patches=16, num_classes=10):
    shapes = published_shapes(width, depth, patches, num_classes)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def classifier(num_classes, width, **backbone):
    pytest.importorskip('mmpretrain')
    config = dict(
        type='ImageClassifier',
        backbone=dict(type='mmssm.Vim', **backbone),
        head=dict(
            type='LinearClsHead', num_classes=num_classes, in_channels=width
        ),
    )
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return MODELS.build(config)


def test_rule_of_the_published_names():
    shapes = published_shapes(192, 24, 196)
    assert len(shapes) == 415
    numbers = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert numbers == 7_148_008
    stride_8 = published_shapes(192, 24, 729).values()
    assert sum(torch.Size(shape).numel() for shape in stride_8) == 7_250_344


@pytest.mark.parametrize('stride', [16, 8])
@pytest.mark.parametrize('arch', WIDTHS)
def test_every_variant_loads_strictly(arch, stride):
    width = WIDTHS[arch]
    patches = {16: 14, 8: 27}[stride] ** 2
    weights = published(width, depth=1, patches=patches, num_classes=7)
    settings = dict(Vim.arch_settings[arch], depth=1)
    model = classifier(7, width, arch=settings, stride=stride)
    converted = converter.convert(weights)
    assert len(converted) == len(weights)
    model.load_state_dict(converted, strict=True)
    # The very numbers, and each direction its own.
    direction = model.backbone.layers[0].mixer.backward_scan
    assert torch.equal(direction.A_log, weights['layers.0.mixer.A_b_log'])
    assert torch.equal(direction.D, weights['layers.0.mixer.D_b'])
    kept = {value.data_ptr() for value in converted.values()}
    assert kept == {value.data_ptr() for value in weights.values()}


def test_all_24_blocks():
    shapes = published_shapes(192, 24, 196)
    weights = {
        name: torch.empty(shape, device='meta')
        for name, shape in shapes.items()
    }
    converted = converter.convert(weights)
    expected = {f'backbone.{n}': p.shape for n, p in Vim().named_parameters()}
    expected['head.fc.weight'] = torch.Size((1000, 192))
    expected['head.fc.bias'] = torch.Size((1000,))
    assert {n: value.shape for n, value in converted.items()} == expected


@pytest.mark.parametrize('name', FILES)
def test_converted_classifier_gives_the_published_logits(name):
    golden = Golden(name, 'vision')
    config = golden.config
    model = classifier(
        config['ncls'],
        config['embed'],
        arch=dict(embed_dims=config['embed'], depth=config['depth']),
        img_size=tuple(config['img_size']),
        stride=config['stride'],
    ).eval()
    model.load_state_dict(converter.convert(golden.sd), strict=True)
    golden.check('logits', model(golden.inputs['img']))


def backbone_weights(weights):
    prefix = 'backbone.'
    return {
        key.removeprefix(prefix): value
        for key, value in weights.items()
        if key.startswith(prefix)
    }


def test_model_published_without_class_token():
    golden = Golden('open_vim_nocls_all', 'vision')
    converted = converter.convert(golden.sd)
    model = Vim(
        dict(embed_dims=48, depth=2),
        img_size=64,
        with_cls_token=False,
        out_type='raw',
    )
    model.load_state_dict(backbone_weights(converted), strict=True)
    tokens = model(golden.inputs['img'])[0]
    logits = nn.functional.linear(
        tokens, converted['head.fc.weight'], converted['head.fc.bias']
    )
    golden.check('logits', logits)
    with pytest.raises(KeyError, match='no class token; leave --dense out'):
        converter.to_dense(converted)


def test_dense_leaves_out_the_row_of_the_class_token():
    weights = published()
    weights['pos_embed'][:, 8] = 1e6
    dense = converter.to_dense(converter.convert(weights))
    assert 'backbone.cls_token' not in dense
    positions = dense['backbone.pos_embed.weight']
    expected = torch.cat(
        (weights['pos_embed'][:, :8], weights['pos_embed'][:, 9:]), dim=1
    )
    assert torch.equal(positions, expected)
    model = Vim(
        dict(embed_dims=48, depth=2),
        img_size=64,
        with_cls_token=False,
        out_type='featmap',
    )
    model.load_state_dict(backbone_weights(dense), strict=True)


@pytest.mark.parametrize('dense', [False, True])
def test_grid(dense):
    weights = published()
    weights['pos_embed'][:, 8] = 1e6
    converted = converter.convert(weights)
    if dense:
        converted = converter.to_dense(converted)
    resized = converter.resize(converted, (6, 9))
    positions = resized['backbone.pos_embed.weight']
    assert positions.shape == (1, 54 + (not dense), 48)
    # Bicubic weights overshoot, yet by far less than the class row.
    largest = positions.abs().amax(-1)[0]
    assert largest.gt(1e5).nonzero().flatten().tolist() == [27][: not dense]
    expected = resize_position_embed(
        converted['backbone.pos_embed.weight'], (4, 4), (6, 9), not dense
    )
    assert torch.equal(positions, expected)
    model = Vim(
        dict(embed_dims=48, depth=2),
        img_size=(96, 144),
        with_cls_token=not dense,
        out_type='featmap',
    )
    model.load_state_dict(backbone_weights(resized), strict=True)
    # As the backbone interpolates on line.
    on_line = Vim(
        dict(embed_dims=48, depth=2),
        img_size=64,
        with_cls_token=not dense,
        out_type='featmap',
    )
    on_line.load_state_dict(backbone_weights(converted))
    x = torch.randn(1, 3, 96, 144)
    if not dense:  # a class row of such a size drowns the rest
        for each in (model, on_line):
            with torch.no_grad():
                each.pos_embed.weight[each.pos_embed.weight > 1e5] = 0
    torch.testing.assert_close(model(x), on_line(x))


def without(*names):
    weights = published()
    for name in names:
        del weights[name]
    return weights


def one_direction():
    return {
        key: value
        for key, value in published().items()
        if '_b' not in key.removeprefix('layers')
    }


@pytest.mark.parametrize(
    ('weights', 'message'),
    [
        (published(depth=0), '0 blocks of 0 weights'),
        (without('pos_embed'), 'missing: backbone.pos_embed.weight'),
        (without('norm_f.weight'), 'missing: backbone.norm_f.weight'),
        (
            without('layers.1.mixer.A_b_log'),
            'missing: backbone.layers.1.mixer.backward_scan.A_log',
        ),
        (one_direction(), 'missing: a direction'),
        (
            dict(published(), **{'layers.0.attn.qkv.weight': torch.zeros(1)}),
            '1 keys match no rule.*layers.0.attn.qkv.weight',
        ),
        ({}, '0 blocks'),
    ],
)
def test_incomplete_weights_are_refused(weights, message):
    with pytest.raises(KeyError, match=message):
        converter.convert(weights)


def test_grid_needs_a_square():
    converted = converter.convert(published(patches=15))
    with pytest.raises(ValueError, match='15 patches; expected .* square'):
        converter.resize(converted, (4, 4))


def convert_file(monkeypatch, *arguments):
    monkeypatch.setattr('sys.argv', [SCRIPT, *map(str, arguments)])
    converter.main()


def test_command_line(tmp_path):
    weights = published()
    torch.save({'model': weights}, tmp_path / 'published.pth')
    output = tool(SCRIPT, 'published.pth', 'sub/ours.pth', cwd=tmp_path)
    number = sum(value.numel() for value in weights.values())
    assert f'{len(weights)} tensors, {number:,} parameters' in output
    written = torch.load(tmp_path / 'sub/ours.pth', weights_only=True)
    converted = converter.convert(weights)
    assert written['state_dict'].keys() == converted.keys()
    for name, value in converted.items():
        assert torch.equal(written['state_dict'][name], value)


def test_file_of_the_authors_training_script(tmp_path, monkeypatch):
    # It saves its parsed options beside the weights.
    checkpoint = {
        'model': published(),
        'epoch': 3,
        'args': argparse.Namespace(lr=1e-3),
    }
    torch.save(checkpoint, tmp_path / 'published.pth')
    convert_file(
        monkeypatch, tmp_path / 'published.pth', tmp_path / 'ours.pth'
    )
    weights = torch.load(tmp_path / 'ours.pth')['state_dict']
    assert 'backbone.cls_token' in weights


def test_target_is_a_file(tmp_path, monkeypatch):
    torch.save(published(), tmp_path / 'published.pth')
    with pytest.raises(SystemExit, match='is a folder'):
        convert_file(monkeypatch, tmp_path / 'published.pth', tmp_path)


def test_options_of_the_command_line(tmp_path, monkeypatch):
    source, target = tmp_path / 'published.pth', tmp_path / 'dense.pth'
    torch.save(published(), source)  # bare
    convert_file(monkeypatch, source, target, '--dense', '--grid', '3', '5')
    written = torch.load(target, weights_only=True)['state_dict']
    assert written['backbone.pos_embed.weight'].shape == (1, 15, 48)
    assert 'backbone.cls_token' not in written


@pytest.mark.parametrize(
    ('content', 'arguments', 'message'),
    [
        (None, [], 'no checkpoint at'),
        (b'not a checkpoint', [], 'cannot be read as a checkpoint'),
        ([1, 2], [], 'holds no state dict'),
        ({'w': torch.zeros(1)}, [], '1 keys match no rule'),
        (published(patches=15), ['--grid', '2', '2'], 'a square grid'),
        (
            {'pos_embed': torch.zeros(1, 16, 4)},
            ['--dense'],
            'not a whole Vim',
        ),
    ],
    ids=['absent', 'garbage', 'list', 'other-model', 'not-square', 'part'],
)
def test_wrong_files_give_clear_errors(
    tmp_path, monkeypatch, content, arguments, message
):
    source, target = tmp_path / 'published.pth', tmp_path / 'ours.pth'
    if isinstance(content, bytes):
        source.write_bytes(content)
    elif content is not None:
        torch.save(content, source)
    with pytest.raises(SystemExit, match=message) as exit_info:
        convert_file(monkeypatch, source, target, *arguments)
    assert str(exit_info.value).startswith('error: ')
    assert not target.exists()
