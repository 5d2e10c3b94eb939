"""Poles over an image: what is computed, drawn and written."""

import csv
import sys

import cv2
import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm

from mmssm.analysis import find_pole_directions
from mmssm.analysis.pole_maps import (
    PoleMap,
    Poles,
    find_pole_backbone,
    map_poles,
    memory_horizon,
    prepare_image,
    read_image,
    write_tables,
)
from mmssm.models import TCPVim, Vim
from mmssm.visualization import plot_horizons, plot_layer
from tests.test_tools.commands import TOOLS, run_unchecked, tool

CONFIG = """
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmssm.{backbone}',
        arch=dict(embed_dims=16, depth=2),
        img_size=32,
        patch_size=8,
        mixer=dict({mixer}),
    ),
    head=dict(type='LinearClsHead', num_classes=2, in_channels=16),
)
data_preprocessor = dict(mean=[100.0] * 3, std=[50.0] * 3, to_rgb=True)
default_scope = 'mmpretrain'
"""


def make_backbone(scale=1.0, img_size=32, in_channels=3, **mixer):
    model = TCPVim(
        dict(embed_dims=16, depth=3),
        img_size=img_size,
        patch_size=8,
        in_channels=in_channels,
        mixer=dict(num_groups=4, rank=4, backend='torch', **mixer),
    )
    perturb(model, scale)
    return model.eval()


def perturb(model, scale=1.0):
    for direction in find_pole_directions(model).values():
        if direction.num_modulations:
            mods = 2 * direction.num_modulations
            torch.nn.init.normal_(direction.x_proj.weight[-mods:], std=scale)


def make_map(radii, theta=None, reals=0):
    """Map of one group whose poles are pairs, the first `reals` real."""
    radii = torch.tensor(radii, dtype=torch.float64)[:, :, None]
    theta = (
        torch.full_like(radii, 1.0)
        if theta is None
        else torch.tensor(theta, dtype=torch.float64)[:, :, None]
    )
    poles = Poles(radii[..., :reals], radii[..., reals:], theta[..., reals:])
    base = Poles(*(t[0, 0] for t in vars(poles).values()))
    return PoleMap(0, 'forward', poles, base)


def test_horizon_is_where_a_mode_has_decayed_to_1_over_e():
    radius = torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)
    torch.testing.assert_close(
        radius ** memory_horizon(radius),
        torch.full_like(radius, float(np.exp(-1))),
    )
    assert memory_horizon(torch.zeros(1)) == 0


def test_map_takes_the_slowest_pole_and_the_strongest_oscillation():
    pole_map = make_map([[[0.5, 0.9]], [[0.8, 0.1]]], [[[3.0, 0.3]]] * 2)
    assert pole_map.max_radius.tolist() == [[0.9], [0.8]]
    assert float(pole_map.horizon[0, 0]) == pytest.approx(-1 / np.log(0.9))
    assert pole_map.oscillation.flatten().tolist() == pytest.approx(
        [0.5 * 3 / np.pi, 0.8 * 3 / np.pi]
    )
    assert pole_map.landmarks() == {
        'longest memory': (0, 0),
        'fastest decay': (1, 0),
        'strongest oscillation': (1, 0),
    }


def test_map_without_pairs_or_without_differences():
    real = make_map([[[-0.5]], [[0.9]]], reals=1)
    assert real.oscillation.tolist() == [[0.0], [0.0]]
    assert real.landmarks() == {
        'longest memory': (1, 0),
        'fastest decay': (0, 0),
    }
    assert make_map([[[0.9]], [[0.9]]]).landmarks() == {}


@pytest.mark.parametrize('with_cls_token', [True, False])
@pytest.mark.parametrize('size', [(32, 32), (40, 72)])
def test_poles_lie_where_their_tokens_do(with_cls_token, size):
    backbone = make_backbone()
    if not with_cls_token:
        backbone = TCPVim(
            dict(embed_dims=16, depth=3),
            img_size=32,
            patch_size=8,
            with_cls_token=False,
            out_type='raw',
            mixer=dict(num_groups=4, rank=4, backend='torch'),
        ).eval()
        perturb(backbone)
    # Without mixing only a patch itself decides about its poles.
    for block in backbone.layers:
        torch.nn.init.zeros_(block.mixer.out_proj.weight)
        for scan in (block.mixer.forward_scan, block.mixer.backward_scan):
            torch.nn.init.zeros_(scan.conv1d.weight[..., :-1])
    torch.nn.init.zeros_(backbone.pos_embed.weight)
    image = torch.zeros(1, 3, *size)
    image[:, :, 16:24, 24:32] = torch.randn(3, 8, 8)
    for pole_map in map_poles(backbone, image):
        assert pole_map.horizon.shape == (size[0] // 8, size[1] // 8)
        differs = (pole_map.horizon - pole_map.horizon[0, 0]).abs() > 1e-5
        assert differs.nonzero().tolist() == [[2, 3]]


def test_maps_are_of_the_chosen_layers():
    backbone, image = make_backbone(), torch.randn(1, 3, 32, 32)
    maps = map_poles(backbone, image, layers=[-1, 0, 2])
    names = [(m.layer, m.direction) for m in maps]
    assert names == [
        (2, 'forward'),
        (2, 'backward'),
        (0, 'forward'),
        (0, 'backward'),
    ]
    assert len(map_poles(backbone, image)) == 6
    for direction in find_pole_directions(backbone).values():
        assert not direction._forward_hooks
    with pytest.raises(ValueError, match='no layer 3; expected -3 to 2'):
        map_poles(backbone, image, layers=[3])
    with pytest.raises(ValueError, match='expected .1, channels'):
        map_poles(backbone, image[0])


def test_fixed_poles_are_the_same_everywhere():
    backbone = make_backbone(fixed_poles=True)
    for pole_map in map_poles(backbone, torch.randn(1, 3, 32, 32)):
        assert pole_map.landmarks() == {}
        base = pole_map.base.horizons()
        torch.testing.assert_close(
            pole_map.tokens.horizons()[0, 0], base, rtol=1e-5, atol=0
        )


def test_model_without_poles_is_refused():
    model = torch.nn.Sequential(Vim(dict(embed_dims=16, depth=1), 32))
    with pytest.raises(ValueError, match='no poles to show'):
        find_pole_backbone(model)
    poles = make_backbone()
    assert find_pole_backbone(torch.nn.Sequential(poles)) is poles


@pytest.mark.parametrize(
    'size, short_side, expected',
    [
        ((8, 8), None, (32, 32)),
        ((100, 333), None, (32, 104)),
        ((3000, 40), None, (2400, 32)),
        ((64, 64), 50, (48, 48)),
        ((1, 1), 8, (8, 8)),
    ],
)
def test_any_size_becomes_whole_patches(size, short_side, expected):
    image = np.zeros((*size, 3), dtype=np.uint8)
    backbone = make_backbone()
    prepared = prepare_image(image, backbone, short_side)
    assert prepared.shape == (*expected, 3)
    assert prepared.dtype == np.uint8
    grey = prepare_image(image, make_backbone(in_channels=1), short_side)
    assert grey.shape == (*expected, 1)


def test_images_that_cannot_be_used(tmp_path):
    with pytest.raises(FileNotFoundError, match='was not found'):
        read_image(tmp_path / 'none.png')
    for name, content in (('text.png', 'no image'), ('empty.png', '')):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match='is not an image'):
            read_image(tmp_path / name)
    image = np.zeros((32, 32, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match='at least one patch, 8'):
        prepare_image(image, make_backbone(), 7)
    with pytest.raises(ValueError, match='4 channels; expected 1 or 3'):
        prepare_image(image, make_backbone(in_channels=4))


@pytest.fixture(scope='module')
def maps():
    torch.manual_seed(0)
    return map_poles(make_backbone(3.0), torch.randn(1, 3, 24, 32))


IMAGE = np.zeros((24, 32, 3), dtype=np.uint8)


def test_layer_shows_maps_markers_and_poles(maps, tmp_path):
    figure = plot_layer(IMAGE, maps[:2], 'layer 0', tmp_path / 'layer.png')
    written = cv2.imread(str(tmp_path / 'layer.png'))
    assert written.shape[0] > 500 and written.std() > 10
    assert [path.name for path in tmp_path.iterdir()] == ['layer.png']
    axes = {axis.get_title(): axis for axis in figure.axes}
    for pole_map in maps[:2]:
        axis = axes[f'{pole_map.direction} scan']
        (drawn,) = axis.images
        assert np.array_equal(drawn.get_array(), pole_map.horizon)
        markers = [
            (int(y) // 8, int(x) // 8)
            for line in axis.lines
            for x, y in zip(*line.get_data(), strict=True)
        ]
        assert markers == list(pole_map.landmarks().values())
        disk = axes[f'poles, {pole_map.direction} scan']
        points = np.concatenate([c.get_offsets() for c in disk.collections])
        radii = pole_map.tokens.radii().flatten()
        # Each pole and its conjugate.
        assert np.allclose(np.hypot(*points.T), np.concatenate((radii, radii)))
        crosses = [li for li in disk.lines if li.get_marker() == 'x']
        assert sum(len(li.get_xdata()) for li in crosses) == 2 * 12


def test_scale_is_logarithmic_where_the_range_is_wide():
    wide = make_map([[[0.1]], [[0.99]]])
    narrow = make_map([[[0.9]], [[0.95]]])
    constant = make_map([[[0.9]], [[0.9]]])
    norms = []
    for pole_map in (wide, narrow, constant):
        figure = plot_layer(IMAGE, [pole_map])
        (axis,) = (a for a in figure.axes if a.get_title() == 'forward scan')
        norms.append(axis.images[0].norm)
    assert [isinstance(norm, LogNorm) for norm in norms] == [1, 0, 0]
    assert norms[2].vmin < -1 / np.log(0.9) < norms[2].vmax


def test_overview_has_all_layers_in_one_scale(maps, tmp_path):
    path = tmp_path / 'horizons.png'
    figure = plot_horizons(IMAGE[..., 0], maps, 'all', path)
    assert cv2.imread(str(path)) is not None
    titles = [a.get_title() for a in figure.axes if a.get_title()]
    assert sorted(titles) == sorted(f'{m.layer}, {m.direction}' for m in maps)
    scales = {
        (a.images[0].norm.vmin, a.images[0].norm.vmax)
        for a in figure.axes
        if a.get_title()
    }
    assert len(scales) == 1


def test_tables_hold_every_token_and_base_pole(maps, tmp_path):
    for path in write_tables(maps, tmp_path):
        with path.open(newline='') as file:
            rows = list(csv.DictReader(file))
        if path.name == 'tokens.csv':
            assert len(rows) == 6 * 12
            last = rows[-1]
            assert (last['layer'], last['direction']) == ('2', 'backward')
            assert (last['row'], last['column']) == ('2', '3')
            for name in ('horizon', 'max_radius', 'oscillation'):
                value = float(getattr(maps[-1], name)[2, 3])
                assert float(last[name]) == pytest.approx(value, rel=1e-5)
        else:
            assert len(rows) == 6 * 4 * 3
            kinds = {row['kind'] for row in rows}
            assert kinds == {'real', 'pair'}
            real = [row for row in rows if row['kind'] == 'real']
            # Groups alternate in sign.
            assert {round(float(r['angle']), 3) for r in real} == {0, 3.142}
    assert len(list(tmp_path.iterdir())) == 2


def write_model(tmp_path, backbone='TCPVim', mixer='num_groups=4'):
    pytest.importorskip('mmpretrain')
    if backbone == 'Vim':
        mixer = "type='mmssm.SelectiveScanMixer'"
    text = CONFIG.format(backbone=backbone, mixer=mixer)
    (tmp_path / 'config.py').write_text(text)
    model = TCPVim(
        dict(embed_dims=16, depth=2),
        img_size=32,
        patch_size=8,
        mixer=dict(num_groups=4),
    )
    perturb(model)
    state = {f'backbone.{k}': v for k, v in model.state_dict().items()}
    state['head.fc.weight'] = torch.zeros(2, 16)
    state['head.fc.bias'] = torch.zeros(2)
    torch.save(state, tmp_path / 'model.pth')
    image = np.random.randint(0, 255, (60, 90, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / 'photo.jpg'), image)


SCRIPT = 'analysis_tools/plot_poles.py'
ARGUMENTS = ('config.py', 'model.pth', 'photo.jpg')


def test_tool_writes_pictures_and_tables(tmp_path):
    write_model(tmp_path)
    output = tool(SCRIPT, *ARGUMENTS, '--layers', '-1', cwd=tmp_path)
    folder = tmp_path / 'work_dirs/poles/photo'
    names = {path.name for path in folder.iterdir()}
    assert names == {
        'horizons.png',
        'layer_01.png',
        'tokens.csv',
        'base_poles.csv',
    }
    assert all(f'wrote work_dirs/poles/photo/{n}' in output for n in names)
    tokens = (folder / 'tokens.csv').read_text().splitlines()
    assert len(tokens) == 1 + 2 * 4 * 6


@pytest.mark.parametrize(
    'change, message',
    [
        ('text', 'is not an image'),
        ('no poles', 'no poles to show'),
    ],
)
def test_tool_says_what_is_wrong(tmp_path, change, message):
    write_model(tmp_path, 'Vim' if change == 'no poles' else 'TCPVim')
    if change == 'text':
        (tmp_path / 'photo.jpg').write_text('text')
    command = (sys.executable, TOOLS / SCRIPT, *ARGUMENTS)
    result = run_unchecked(*command, cwd=tmp_path)
    assert result.returncode == 1
    assert message in result.stderr and 'Traceback' not in result.stderr
