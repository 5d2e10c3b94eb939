"""The ImageNet configs of Vim and TCP-Vim: recipes, and one step of each."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from mmssm.engine.launch import load_config, set_scope_defaults
from mmssm.registry import MODELS
from tests.test_models.golden import ROOT

pytest.importorskip('mmpretrain')

CONFIGS = ROOT / 'configs'
VIM = sorted((CONFIGS / 'vim').glob('*_in1k.py'))
TCP_VIM = sorted((CONFIGS / 'tcp_vim').glob('*_in1k.py'))
T1 = 'tcp_vim/tcp-vim-t1_8xb32-distill-600e_in1k.py'
TINY = 'vim/vim-tiny-p16_8xb128-300e_in1k.py'
NEVER_DECAYED = (
    'A_log',
    'D',
    'bias',
    'rho_hat',
    'theta_hat',
    'real_rho_hat',
    'sign_hat',
    'rho_bias',
    'theta_bias',
    'residues',
    'cls_token',
)


def read(path):
    config = Config.fromfile(path)
    assert config.default_scope == 'mmpretrain'
    return config


def shrink(part):
    """Keep everything of a model but its sizes."""
    part.backbone.arch = dict(embed_dims=16, depth=2)
    if 'TCP' in part.backbone.type:
        mixer = part.backbone.setdefault('mixer', {})
        part.backbone.mixer = dict(mixer, num_groups=4)
    part.head.in_channels = 16


@pytest.mark.parametrize('path', [*VIM, *TCP_VIM], ids=lambda p: p.stem)
def test_only_matrices_decay(path):
    config = read(path)
    for part in (config.model, config.model.get('student')):
        if part is not None and 'backbone' in part:
            shrink(part)
    if 'teacher' in config.model:
        shrink(config.model.teacher)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(config.model)
        wrapper = build_optim_wrapper(model, config.optim_wrapper)
    names = {id(p): name for name, p in model.named_parameters()}
    decay = {
        names[id(p)]: group['weight_decay']
        for group in wrapper.param_groups
        for p in group['params']
        if id(p) in names  # mmengine adds a scalar that is no parameter
    }
    assert decay.keys() == set(names.values())
    for name, value in decay.items():
        leaf = name.rpartition('.')[2]
        is_vector = dict(model.named_parameters())[name].ndim == 1
        spared = leaf in NEVER_DECAYED or 'pos_embed' in name or is_vector
        expected = config.optim_wrapper.optimizer.weight_decay
        assert value == (0.0 if spared else expected), name
    rates = {group['lr'] for group in wrapper.param_groups}
    assert rates == {config.optim_wrapper.optimizer.lr}


@pytest.mark.parametrize('path', [*VIM, *TCP_VIM], ids=lambda p: p.stem)
def test_names_say_what_is_inside(path):
    config = read(path)
    epochs = config.train_cfg.max_epochs
    gpus, batch = path.stem.split('_')[1].split('-')[0].split('xb')
    assert f'-{epochs}e_' in path.name
    assert config.train_dataloader.batch_size == int(batch)
    images = int(gpus) * int(batch)
    assert config.auto_scale_lr.base_batch_size == images
    command = path.read_text().splitlines()[0]
    where = path.relative_to(ROOT)
    assert command == f'# bash tools/dist_train.sh {where} {gpus}'


def test_recipes_are_the_published_ones():
    tiny, t1 = (read(CONFIGS / name) for name in (TINY, T1))
    assert tiny.optim_wrapper.optimizer.lr == 5e-4 * 1024 / 512
    assert t1.optim_wrapper.optimizer.lr == 1e-4
    assert t1.model.loss_weight == 6e-2
    assert t1.train_cfg.max_epochs == 600
    for config in (tiny, t1):
        warmup, cosine = config.param_scheduler
        assert warmup.end == cosine.begin == 5
        start = warmup.start_factor * config.optim_wrapper.optimizer.lr
        assert start == pytest.approx(1e-6)
        assert cosine.eta_min == 1e-5
        sampler = config.train_dataloader.sampler
        assert sampler.type == 'RepeatAugSampler'
        kinds = {step['type']: step for step in config.train_pipeline}
        assert kinds['RandomErasing']['erase_prob'] == 0.25
        assert kinds['RandAugment']['magnitude_level'] == 9
        kinds = {step['type']: step for step in config.test_pipeline}
        crop = kinds['CenterCrop']['crop_size'] / kinds['ResizeEdge']['scale']
        assert crop == 0.875


def test_short_name_is_t1():
    short, full = (
        read(CONFIGS / name) for name in ('tcp_vim/imagenet.py', T1)
    )
    assert short.to_dict() == full.to_dict()


def write_imagenet(root):
    """A few images, and their labels, in mmpretrain's layout."""
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        (root / split).mkdir()
        for i in range(4):
            image = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
            cv2.imwrite(str(root / split / f'{i}.jpg'), image)
        (root / f'{split}.txt').write_text(
            ''.join(f'{i}.jpg {i}\n' for i in range(4))
        )


def use_data(config, root):
    for name in ('train', 'val'):
        loader = config[f'{name}_dataloader']
        loader.update(batch_size=2, num_workers=0)
        # Repeated augmentation needs at least 256 images.
        loader.sampler = dict(type='DefaultSampler', shuffle=False)
        loader.dataset.update(
            data_root=str(root), split='', ann_file=f'{name}.txt'
        )
        loader.dataset.data_prefix = name
    config.test_dataloader = config.val_dataloader


@pytest.mark.parametrize('name', [TINY, T1])
def test_config_trains_and_tests(name, tmp_path):
    write_imagenet(tmp_path)
    config = load_config(str(CONFIGS / name))
    use_data(config, tmp_path)
    if 'student' in config.model:
        for part in (config.model.student, config.model.teacher):
            shrink(part)
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            teacher = MODELS.build(config.model.teacher)
        torch.save(teacher.state_dict(), tmp_path / 'teacher.pth')
        config.model.teacher_ckpt = str(tmp_path / 'teacher.pth')
    else:
        shrink(config.model)
    config.train_cfg.max_epochs = 1
    config.param_scheduler = config.param_scheduler[:1]
    config.work_dir = str(tmp_path / 'work')
    config.experiment_name = f'{config.model.type}_{tmp_path.name}'
    set_scope_defaults(config)
    runner = Runner.from_cfg(config)
    runner.train()
    losses = runner.message_hub.get_scalar('train/loss').data[0]
    assert np.isfinite(losses).all() and len(losses) == 2
    metrics = runner.test()
    assert 0 <= metrics['accuracy/top1'] <= 100
