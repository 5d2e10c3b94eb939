"""Vim and TCP-Vim: published numbers, options, training."""

import os
import subprocess
import sys

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.model.wrappers import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from torch import nn

from mmssm.models import TCPVim, Vim
from mmssm.models.layers.position_embed import (
    GridPositionEmbed,
    cls_token_index,
    resize_position_embed,
)
from mmssm.registry import DATASETS, MODELS
from tests.test_models.golden import Golden, load_converter

ARCH = dict(embed_dims=32, depth=3)
FILES = [
    'open_vim_square',
    'open_vim_rect',
    'open_vim_stride8',
    'open_vim_nocls_all',
]
VARIANTS = {
    'vim': (Vim, {}),
    'tcp': (TCPVim, dict(mixer=dict(num_groups=4, rank=6))),
    'tcp-group': (
        TCPVim,
        dict(mixer=dict(num_groups=4, group_modulation=True)),
    ),
    'tcp-fixed': (TCPVim, dict(mixer=dict(num_groups=4, fixed_poles=True))),
    'tcp-modal': (
        TCPVim,
        dict(mixer=dict(num_groups=4, realization='modal')),
    ),
}
each_variant = pytest.mark.parametrize(
    ('cls', 'options'), VARIANTS.values(), ids=VARIANTS
)


def small(cls=Vim, options=None, **kwargs):
    return cls(ARCH, **{'img_size': 64, **(options or {}), **kwargs})


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize('backend', ['reference', 'torch', None])
@pytest.mark.parametrize('name', FILES)
def test_published_model(name, backend):
    golden = Golden(name, 'vision')
    config = golden.config
    weights = load_converter('vim_to_mmssm').convert(golden.sd)
    weights = {
        key.removeprefix('backbone.'): value
        for key, value in weights.items()
        if key.startswith('backbone.')
    }

    def run(**kwargs):
        model = Vim(
            dict(embed_dims=config['embed'], depth=config['depth']),
            img_size=tuple(config['img_size']),
            stride=config['stride'],
            with_cls_token=config['cls'],
            mixer=dict(type='SelectiveScanMixer', backend=backend),
            **{'out_type': 'raw', **kwargs},
        )
        fits = dict(weights)
        if model.out_stream != 'norm':
            del fits['norm_f.weight']
        model.load_state_dict(fits)
        return model(golden.inputs['img'])

    (tokens,) = run()
    golden.check('tokens', tokens)
    blocks = range(config['depth'])
    mixed = run(out_stream='mixer', out_indices=blocks)
    streams = run(out_stream='residual', out_indices=blocks)
    for i in blocks:
        golden.check(f'layer{i}_hidden', mixed[i])
        golden.check(f'layer{i}_residual', streams[i] - mixed[i])
    features = run(out_type='cls_token')[0] if config['cls'] else tokens
    logits = nn.functional.linear(
        features, golden.sd['head.weight'], golden.sd['head.bias']
    )
    golden.check('logits', logits)


def test_published_numbers_of_parameters():
    head = 192 * 1000 + 1000
    assert parameters(Vim()) + head == 7_148_008
    assert parameters(Vim(stride=8)) + head == 7_250_344
    assert parameters(TCPVim()) + head == 7_151_560
    model = TCPVim(mixer=dict(num_reals=3, num_pairs=1))
    assert parameters(model) + head == 7_152_712


@pytest.mark.parametrize(
    ('arch', 'width'), [('tiny', 192), ('small', 384), ('base', 768)]
)
def test_archs(arch, width):
    settings = Vim.arch_settings[arch]
    assert settings == dict(embed_dims=width, depth=24)
    block = Vim(dict(settings, depth=1)).layers[0]
    direction = block.mixer.forward_scan
    assert direction.dt_rank == width // 16
    assert direction.A_log.shape == (2 * width, 16)


def test_archs_of_tcp():
    direction = TCPVim('t1').layers[0].mixer.forward_scan
    assert direction.rank == 22 and direction.order == 5
    assert direction.rho_hat.shape == (12, 2)
    second = TCPVim('t2', mixer=dict(num_groups=6)).layers[-1].mixer
    assert second.forward_scan.rank == 37
    assert second.forward_scan.rho_hat.shape == (6, 2)
    with pytest.raises(ValueError, match=r"'tiny'; expected one of \['t1'"):
        TCPVim('tiny')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(arch='huge'), r"`arch` is 'huge'; expected one of \['base'"),
        (dict(arch=dict(embed_dims=32)), r"keys \['embed_dims'\]"),
        (dict(arch=dict(ARCH, heads=2)), 'expected embed_dims and depth'),
        (dict(out_type='tokens'), "`out_type` is 'tokens'; expected one of"),
        (dict(out_stream='block'), "`out_stream` is 'block'"),
        (dict(with_cls_token=False), 'choose another out_type'),
        (dict(out_indices=3), '`out_indices` has 3; expected -3 to 2'),
        (dict(out_indices=(0, -4)), '`out_indices` has -4'),
        (dict(frozen_stages=4), '`frozen_stages` is 4'),
        (dict(frozen_stages=-2), 'expected -1 to the number of blocks, 3'),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Vim(**{'arch': ARCH, 'img_size': 64, **arguments})


@pytest.mark.parametrize('with_cls_token', [True, False])
@pytest.mark.parametrize('out_stream', ['norm', 'mixer', 'residual'])
@pytest.mark.parametrize(
    ('out_type', 'shape'),
    [
        ('cls_token', (2, 32)),
        ('avg_featmap', (2, 32)),
        ('featmap', (2, 32, 3, 5)),
        ('raw', None),
    ],
)
def test_shapes(out_type, shape, out_stream, with_cls_token):
    if out_type == 'cls_token' and not with_cls_token:
        return
    model = small(
        out_type=out_type,
        out_stream=out_stream,
        with_cls_token=with_cls_token,
        img_size=(48, 80),
        out_indices=(2, 0, -2),
    )
    outputs = model(torch.randn(2, 3, 48, 80))
    assert [o.shape for o in outputs] == 3 * [
        shape or (2, 15 + with_cls_token, 32)
    ]
    assert hasattr(model, 'norm_f') == (out_stream == 'norm')


def test_out_types_are_views_of_the_tokens():
    model = small(out_type='raw', out_indices=(0, 2))
    x = torch.randn(2, 3, 64, 64)
    tokens = model(x)
    for out_type in ('cls_token', 'featmap', 'avg_featmap'):
        model.out_type = out_type
        for output, raw in zip(model(x), tokens, strict=True):
            patches = torch.cat((raw[:, :8], raw[:, 9:]), dim=1)
            expected = {
                'cls_token': raw[:, 8],
                'featmap': patches.mT.reshape(2, 32, 4, 4),
                'avg_featmap': patches.mean(1),
            }[out_type]
            torch.testing.assert_close(output, expected)


@pytest.mark.parametrize('with_cls_token', [True, False])
@pytest.mark.parametrize(
    ('size', 'grid'),
    [
        ((64, 64), (4, 4)),
        ((32, 96), (2, 6)),
        ((65, 33), (5, 3)),
        ((7, 9), (1, 1)),
    ],
)
def test_images_of_any_size(size, grid, with_cls_token):
    model = small(with_cls_token=with_cls_token, out_type='featmap')
    (y,) = model(torch.randn(1, 3, *size))
    assert y.shape == (1, 32, *grid) and y.isfinite().all()
    model.out_type = 'raw'
    (tokens,) = model(torch.randn(1, 3, *size))
    assert tokens.shape[1] == grid[0] * grid[1] + with_cls_token


def test_every_pixel_counts():
    model = small(out_type='raw', stride=8)
    x = torch.randn(1, 3, 61, 45, requires_grad=True)
    model(x)[0].square().sum().backward()
    assert x.grad.ne(0).any(1).all()


def test_class_row_never_enters_the_grid():
    embed = GridPositionEmbed((4, 4), 8, with_cls_token=True)
    with torch.no_grad():
        embed.weight[:, cls_token_index((4, 4))] = 1e6
        embed.weight[:, :8] = embed.weight[:, 9:] = 3
    for grid in [(4, 4), (7, 5), (3, 3), (1, 9), (8, 8)]:
        rows = embed(grid)[0]
        index = cls_token_index(grid)
        assert rows.shape == (grid[0] * grid[1] + 1, 8)
        assert rows[index].eq(1e6).all()
        others = torch.cat((rows[:index], rows[index + 1 :]))
        torch.testing.assert_close(others, torch.full_like(others, 3))
    # Nor the other way about.
    embed.weight.grad = None
    embed((7, 5))[:, cls_token_index((7, 5))].sum().backward()
    touched = embed.weight.grad[0].any(-1).nonzero().flatten().tolist()
    assert touched == [8]


@pytest.mark.parametrize('with_cls_token', [True, False])
def test_positions_are_interpolated_as_an_image(with_cls_token):
    rows, columns = torch.meshgrid(
        torch.linspace(0, 1, 6), torch.linspace(0, 1, 4), indexing='ij'
    )
    image = torch.stack((rows, columns))
    weight = image.flatten(1).T
    if with_cls_token:
        extra = torch.full((1, 2), -5.0)
        weight = torch.cat((weight[:12], extra, weight[12:]))
    resized = resize_position_embed(
        weight[None], (6, 4), (9, 11), with_cls_token
    )[0]
    if with_cls_token:
        index = cls_token_index((9, 11))
        assert resized[index].eq(-5).all()
        resized = torch.cat((resized[:index], resized[index + 1 :]))
    expected = nn.functional.interpolate(
        image[None], size=(9, 11), mode='bicubic', align_corners=False
    )[0]
    torch.testing.assert_close(resized.T.reshape(2, 9, 11), expected)
    # Rows stay rows and columns columns.
    found = resized.T.reshape(2, 9, 11)
    assert (
        found[0].diff(dim=0).gt(0).all() and found[1].diff(dim=1).gt(0).all()
    )


def test_position_of_the_class_token_is_its_own():
    model = small(out_type='raw')
    x = torch.randn(1, 3, 64, 64)
    tokens, grid = model.embed(x)
    assert grid == (4, 4)
    with torch.no_grad():
        model.pos_embed.weight[:, 8] += 1
    moved, _ = model.embed(x)
    assert (moved - tokens).abs().sum(-1).nonzero()[:, 1].tolist() == [8]
    expected = model.cls_token[0, 0] + model.pos_embed.weight[0, 8]
    torch.testing.assert_close(moved[0, 8], expected)


def gradients(model, x):
    model.zero_grad()
    sum(output.square().mean() for output in model(x)).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@each_variant
def test_gradient_reaches_every_parameter(cls, options):
    model = small(cls, options, drop_path_rate=0.0).train()
    for name, gradient in gradients(model, torch.randn(2, 3, 64, 64)).items():
        assert gradient is not None, name
        assert gradient.isfinite().all() and gradient.any(), name


@each_variant
def test_recomputed_activations_change_nothing(cls, options):
    plain = small(cls, options, out_indices=(0, 2))
    saving = small(cls, options, out_indices=(0, 2), with_cp=True)
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(plain(x), saving(x))
    expected, found = gradients(plain, x), gradients(saving, x)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


def test_recomputed_activations_drop_the_same_paths():
    model = small(with_cp=True, drop_path_rate=0.5).train()
    x = torch.randn(4, 3, 64, 64)
    torch.manual_seed(3)
    found = gradients(model, x)
    model.with_cp = False
    torch.manual_seed(3)
    for name, gradient in gradients(model, x).items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize('stages', [-1, 0, 2, 3])
def test_frozen_stages(stages):
    model = small(frozen_stages=stages, drop_path_rate=0.5).train()
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    blocks = {f'layers.{i}.' for i in range(max(stages, 0))}
    expected = set()
    for name, _ in model.named_parameters():
        is_embedding = not name.startswith(('layers.', 'norm_f.'))
        is_frozen = name.startswith(tuple(blocks)) if blocks else False
        if is_frozen or (is_embedding and stages >= 0):
            expected.add(name)
    assert frozen == expected
    assert [block.training for block in model.layers] == [
        i >= stages for i in range(3)
    ]
    assert not model.eval().layers[-1].training
    found = gradients(model.train(), torch.randn(2, 3, 64, 64))
    assert {name for name, g in found.items() if g is None} == frozen


def test_drop_path_rates_are_the_published_ones():
    model = Vim(
        dict(embed_dims=16, depth=24), img_size=32, drop_path_rate=0.24
    )
    rates = [block.drop_path.p for block in model.layers]
    expected = [0, *torch.linspace(0, 0.24, 24).tolist()]
    assert rates == pytest.approx(expected[:24])
    assert rates[0] == rates[1] == 0
    assert rates[23] == pytest.approx(0.24 * 22 / 23)
    assert model.drop_path.p == 0.24
    assert all(block.drop_path.mode == 'row' for block in model.layers)


def test_everything_dropped_leaves_the_embedding():
    model = small(drop_path_rate=1.0, out_stream='residual', out_type='raw')
    for block in model.layers:
        block.drop_path.p = 1.0
    x = torch.randn(2, 3, 64, 64)
    tokens, _ = model.embed(x)
    torch.testing.assert_close(model.train()(x)[0], tokens)
    assert not torch.allclose(model.eval()(x)[0], tokens)


def test_start():
    model = Vim(dict(embed_dims=64, depth=4), img_size=128)
    for weight in (model.pos_embed.weight, model.cls_token):
        assert weight.std().item() == pytest.approx(0.02, rel=0.3)
    projection = model.patch_embed.proj
    assert not projection.bias.any()
    deviation = projection.weight.std().item()
    assert deviation == pytest.approx(768**-0.5, rel=0.05)
    for block in model.layers:
        bound = 128**-0.5 / 2  # kaiming-uniform over sqrt(depth)
        largest = block.mixer.out_proj.weight.abs().max()
        assert 0.9 * bound < largest <= bound


@each_variant
def test_compiled_model_trains(cls, options):
    model = cls(
        dict(embed_dims=16, depth=2), **{'img_size': 32, **options}
    ).train()
    compiled = torch.compile(model, backend='aot_eager')
    x = torch.randn(2, 3, 32, 32)
    expected = gradients(model, x)
    torch.testing.assert_close(compiled(x), model(x))
    model.zero_grad()
    compiled(x)[0].square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        loss = (compiled(x)[0] - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    torch._dynamo.reset()


def train_in_half(cls, options, dtype, steps):
    """Train on noise under autocast; float16 with scaled losses."""
    model = cls(
        dict(embed_dims=16, depth=2),
        **{'img_size': 16, 'patch_size': 4, **options},
    ).train()
    head = nn.Linear(16, 5)
    weights = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, 1e-3)
    scaler = torch.amp.GradScaler(
        'cpu', init_scale=2.0**10, enabled=dtype == torch.float16
    )
    for _ in range(steps):
        x, target = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))
        with torch.autocast('cpu', dtype=dtype):
            logits = head(model(x)[0])
            loss = nn.functional.cross_entropy(logits, target)
        assert logits.dtype == dtype and loss.isfinite()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for weight in weights:
            assert weight.grad.isfinite().all()
        scaler.step(optimizer)
        scaler.update()
    assert all(weight.isfinite().all() for weight in weights)


each_half = pytest.mark.parametrize(
    'dtype', [torch.float16, torch.bfloat16], ids=['float16', 'bfloat16']
)


@each_half
@each_variant
def test_half_precision_stays_finite(cls, options, dtype):
    train_in_half(cls, options, dtype, steps=10)


@pytest.mark.slow
@each_half
@each_variant
def test_half_precision_stays_finite_over_many_steps(cls, options, dtype):
    train_in_half(cls, options, dtype, steps=1000)


def test_residual_stream_is_float32_under_autocast():
    model = small(out_stream='residual', out_type='raw')
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert model(torch.randn(1, 3, 64, 64))[0].dtype == torch.float32


@MODELS.register_module()
class NoiseClassifier(BaseModel):
    """Smallest model around a backbone."""

    def __init__(self, backbone, data_preprocessor=None):
        super().__init__(data_preprocessor)
        self.backbone = MODELS.build(backbone)
        self.head = nn.Linear(self.backbone.embed_dims, 5)

    def forward(self, inputs, labels, mode='tensor'):
        logits = self.head(self.backbone(inputs)[-1])
        return dict(loss=nn.functional.cross_entropy(logits, labels))


@DATASETS.register_module()
class NoiseImages(torch.utils.data.Dataset):
    """Twelve images of noise."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 16, 16, generator=generator)
        return dict(inputs=image, labels=index % 5)


class LossCurve(Hook):
    """Keeps the loss of every iteration."""

    def __init__(self):
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses.append(outputs['loss'].item())


def tiny_backbone(name):
    cls, options = VARIANTS[name]
    return dict(
        type=cls.__name__,
        arch=dict(embed_dims=16, depth=2),
        img_size=16,
        patch_size=4,
        **options,
    )


def make_runner(folder, name, curve, **kwargs):
    return Runner(
        model=dict(type='NoiseClassifier', backbone=tiny_backbone(name)),
        work_dir=str(folder),
        experiment_name=f'{folder.name}-{name}',
        train_dataloader=dict(
            batch_size=4,
            num_workers=0,
            collate_fn=dict(type='default_collate'),
            sampler=dict(type='DefaultSampler', shuffle=True),
            dataset=dict(type='NoiseImages'),
        ),
        train_cfg=dict(by_epoch=True, max_epochs=4),
        optim_wrapper=dict(
            optimizer=dict(type='AdamW', lr=1e-2),
            clip_grad=dict(max_norm=1.0),
        ),
        param_scheduler=dict(type='CosineAnnealingLR', T_max=4, by_epoch=True),
        custom_hooks=[curve],
        randomness=dict(seed=3),
        default_scope='mmssm',
        log_level='ERROR',
        **kwargs,
    )


@pytest.mark.parametrize('name', ['vim', 'tcp-group'])
def test_resumed_training_has_the_same_losses(name, tmp_path):
    whole, rest = LossCurve(), LossCurve()
    make_runner(tmp_path / 'whole', name, whole).train()
    torch.manual_seed(99)  # another process starts anywhere
    make_runner(
        tmp_path / 'rest',
        name,
        rest,
        resume=True,
        load_from=str(tmp_path / 'whole/epoch_2.pth'),
    ).train()
    assert len(whole.losses) == 12
    assert rest.losses == pytest.approx(whole.losses[6:], rel=1e-6)
    assert whole.losses[-1] < whole.losses[0]


def train_in_two_processes(rank, folder, name, queue):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE='2', LOCAL_RANK=str(rank))
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2
    )
    torch.manual_seed(5)
    model = NoiseClassifier(tiny_backbone(name)).train()
    # Raises in the second step if a parameter got no gradient.
    wrapped = MMDistributedDataParallel(model, find_unused_parameters=False)
    optim = OptimWrapper(torch.optim.SGD(model.parameters(), 0.1))
    images = NoiseImages()
    items = [images[i] for i in range(rank, 8, 2)]
    batch = dict(
        inputs=torch.stack([item['inputs'] for item in items]),
        labels=torch.tensor([item['labels'] for item in items]),
    )
    for _ in range(3):
        wrapped.train_step(batch, optim)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    queue.put((rank, weights.numpy()))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    'name',
    [
        'vim',
        pytest.param('tcp-group', marks=pytest.mark.slow),
        pytest.param('tcp', marks=pytest.mark.slow),
        pytest.param('tcp-fixed', marks=pytest.mark.slow),
        pytest.param('tcp-modal', marks=pytest.mark.slow),
    ],
)
def test_two_processes(name, tmp_path):
    context = torch.multiprocessing.get_context('spawn')
    queue = context.SimpleQueue()
    workers = [
        context.Process(
            target=train_in_two_processes, args=(rank, tmp_path, name, queue)
        )
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    results = dict(queue.get() for _ in workers)
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert (results[0] == results[1]).all()
    # One process with the whole batch takes the same steps.
    torch.manual_seed(5)
    model = NoiseClassifier(tiny_backbone(name)).train()
    optim = OptimWrapper(torch.optim.SGD(model.parameters(), 0.1))
    items = [NoiseImages()[i] for i in range(8)]
    batch = dict(
        inputs=torch.stack([item['inputs'] for item in items]),
        labels=torch.tensor([item['labels'] for item in items]),
    )
    for _ in range(3):
        model.train_step(batch, optim)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(
        torch.from_numpy(results[0]), weights, rtol=1e-3, atol=1e-5
    )


@each_variant
def test_mmpretrain_builds_the_classifier(cls, options):
    pytest.importorskip('mmpretrain')
    from mmpretrain.structures import DataSample

    backbone = dict(
        type=f'mmssm.{cls.__name__}', arch=ARCH, img_size=64, **options
    )
    head = dict(type='LinearClsHead', num_classes=7, in_channels=32)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = ROOT_MODELS.build(
            dict(type='ImageClassifier', backbone=backbone, head=head)
        )
    model.init_weights()
    images = torch.randn(2, 3, 64, 64)
    assert model(images).shape == (2, 7)
    samples = [DataSample().set_gt_label(i) for i in range(2)]
    losses = model(images, samples, mode='loss')
    losses['loss'].backward()
    assert model.backbone.patch_embed.proj.weight.grad.any()
    predictions = model(images, samples, mode='predict')
    assert predictions[0].pred_score.shape == (7,)


def test_import_without_extras(tmp_path):
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in (
            'cv2', 'timm', 'mmcv', 'mmpretrain', 'mmseg', 'mmdet'
        ):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
import torch
from mmssm.models import TCPVim, Vim
from mmssm.registry import MODELS
arch = dict(embed_dims=16, depth=1)
for config in (
    dict(type='Vim', arch=arch, img_size=32),
    dict(type='TCPVim', arch=arch, img_size=32, mixer=dict(num_groups=4)),
):
    model = MODELS.build(config)
    print(type(model).__name__, *model(torch.zeros(1, 3, 32, 32))[0].shape)
"""
    result = subprocess.run(
        [sys.executable, '-c', code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ['Vim 1 16', 'TCPVim 1 16']
