"""Distillation: taps, losses, the frozen teacher, saving and resuming."""

import copy
import os

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData
from torch import nn

from mmssm.models import FeatureDistiller, SoftTargetLoss, TCPVim, Vim
from mmssm.models.distillers.shared_weights import copy_shared_weights
from mmssm.models.distillers.taps import find_modules, pair_taps
from mmssm.registry import DATASETS, MODELS
from tests.test_models.test_phase_recognizer import (
    CLIP_LEN,
    batch_of,
    build,
    clips_of,
    video,
)

ARCH = dict(
    arch=dict(embed_dims=16, depth=2), img_size=16, patch_size=4, in_channels=1
)


@MODELS.register_module()
class TinyClassifier(BaseModel):
    """A Vim with a linear head and dropout, without mmpretrain."""

    def __init__(
        self, tcp=False, depth=2, dropout=0.0, data_preprocessor=None, **kwargs
    ):
        super().__init__(data_preprocessor)
        arch = {**ARCH, 'arch': dict(embed_dims=16, depth=depth), **kwargs}
        if tcp:
            arch = {'mixer': dict(num_groups=4, rank=6), **arch}
        self.backbone = (TCPVim if tcp else Vim)(**arch)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(16, 3)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        (features,) = self.backbone(inputs)
        logits = self.fc(self.dropout(self.norm(features)))
        if mode == 'loss':
            return dict(loss=F.cross_entropy(logits, data_samples))
        return logits if mode == 'tensor' else logits.argmax(-1)


@DATASETS.register_module()
class TinyImages(torch.utils.data.Dataset):
    """Noise with labels, the same in every run."""

    def __init__(self, count=8):
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randn(count, 1, 16, 16, generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return dict(inputs=self.images[i], data_samples=i % 3)


def batch(count=4):
    data = TinyImages(count)
    return dict(
        inputs=data.images, data_samples=torch.arange(count).remainder(3)
    )


def make(**kwargs):
    torch.manual_seed(0)
    teacher = kwargs.pop('teacher', None) or TinyClassifier()
    student = kwargs.pop('student', None) or TinyClassifier(tcp=True)
    return FeatureDistiller(student, teacher, **kwargs)


def outputs_of(model, inputs, pattern):
    """Outputs of modules, collected without the code under test."""
    found = []
    for name in find_modules(model, pattern):
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output: found.append(output)
        )
    model(inputs)
    return found


def test_patterns():
    model = TinyClassifier()
    mixers = ['backbone.layers.0.mixer', 'backbone.layers.1.mixer']
    assert find_modules(model, 'backbone.layers.*.mixer') == mixers
    assert find_modules(model, '*.mixer') == []
    assert find_modules(model, '**.mixer') == mixers
    assert find_modules(model, 'backbone.layers.1.mixer') == mixers[1:]
    assert len(find_modules(model, '**.*_scan')) == 4
    assert find_modules(model, 'f.') == []  # a dot is a dot


def test_pairs():
    student, teacher = TinyClassifier(tcp=True), TinyClassifier(depth=4)
    name = 'backbone.layers.{}.mixer'.format
    assert pair_taps(student, TinyClassifier(), None) == [
        (name(0), name(0)),
        (name(1), name(1)),
    ]
    assert pair_taps(student, teacher, {name(1): name(3)}) == [
        (name(1), name(3))
    ]
    assert pair_taps(student, teacher, 'fc') == [('fc', 'fc')]
    both = pair_taps(student, teacher, ['fc', 'norm'])
    assert both == [('fc', 'fc'), ('norm', 'norm')]
    with pytest.raises(ValueError, match='2 modules of the student.* 4 of'):
        pair_taps(student, teacher, None)
    with pytest.raises(ValueError, match='fits no module of the student.*fc'):
        pair_taps(student, teacher, 'backbone.blocks.*')
    with pytest.raises(ValueError, match='fits no module of the teacher'):
        pair_taps(student, teacher, {'fc': 'head'})
    with pytest.raises(ValueError, match='the teacher has no module'):
        pair_taps(student, nn.Linear(1, 1), None)
    with pytest.raises(ValueError, match='empty'):
        pair_taps(student, teacher, [])


def test_loss_is_the_mean_of_the_layers():
    model, data = make(), batch()
    losses = model(**data, mode='loss')
    ours = outputs_of(copy.deepcopy(model.student), data['inputs'], '**.mixer')
    theirs = outputs_of(
        copy.deepcopy(model.teacher), data['inputs'], '**.mixer'
    )
    assert len(ours) == 2
    expected = sum(
        (a - b).abs().mean() / 2 for a, b in zip(ours, theirs, strict=True)
    )
    torch.testing.assert_close(losses['feature_l1'], expected.detach())
    torch.testing.assert_close(losses['loss_distill_feature'], 0.06 * expected)
    total, logged = model.parse_losses(losses)
    torch.testing.assert_close(total, losses['loss'] + 0.06 * expected)
    assert 'feature_l1' in logged
    model.eval()
    copied = copy.deepcopy(model.student)
    ours = outputs_of(copied, data['inputs'], '**.mixer')
    expected = sum(
        (a - b).abs().mean() / 2 for a, b in zip(ours, theirs, strict=True)
    )
    assert model.compare_features(data['inputs']) == pytest.approx(
        expected.item(), rel=1e-5
    )


def test_the_feature_loss_alone_teaches():
    model = make(loss_weight=1.0)
    data = batch()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    distances = []
    for _ in range(30):
        losses = model(**data, mode='loss')
        distances.append(losses['feature_l1'].item())
        optimizer.zero_grad()
        losses['loss_distill_feature'].backward()
        optimizer.step()
    assert distances[-1] < 0.7 * distances[0]


def test_teacher_is_frozen_and_unseen():
    model = make(student=TinyClassifier(tcp=True, dropout=0.5))
    before = copy.deepcopy(model.teacher.state_dict())
    start = copy.deepcopy(model.student.state_dict())
    student = {f'student.{k}' for k in start}
    assert set(model.state_dict()) == student
    optim = build_optim_wrapper(
        model, dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
    )
    seen = {id(p) for g in optim.param_groups for p in g['params']}
    assert seen == {id(p) for p in model.student.parameters()}
    model.train()
    assert model.student.dropout.training
    for _ in range(2):
        model.train_step(batch(), optim)
    assert not any(m.training for m in model.teacher.modules())
    assert all(p.grad is None for p in model.teacher.parameters())
    for name, value in model.teacher.state_dict().items():
        assert torch.equal(value, before[name]), name
    for name, parameter in model.student.named_parameters():
        assert not torch.equal(parameter, start[name]), name
    # No hook is left behind.
    assert not any(m._forward_hooks for m in model.modules())
    model.double()
    assert all(p.dtype == torch.float64 for p in model.teacher.parameters())


def test_modes_are_those_of_the_student():
    model, data = make().eval(), batch()
    logits = model.student(data['inputs'])
    assert torch.equal(model(data['inputs']), logits)
    predicted = model.val_step(data)
    assert torch.equal(predicted, logits.argmax(-1))
    assert model.data_preprocessor is model.student.data_preprocessor


def test_without_weight_the_teacher_does_not_run():
    model = make(loss_weight=0)
    model.teacher.forward = None
    assert set(model(**batch(), mode='loss')) == {'loss'}


def test_extra_losses():
    logits = dict(
        name='logits',
        taps='fc',
        loss=dict(type='mmssm.SoftTargetLoss', temperature=2.0),
    )
    model, data = make(extra_losses=[logits]), batch()
    losses = model(**data, mode='loss')
    ours, theirs = model.student(data['inputs']), model.teacher(data['inputs'])
    p, q = (theirs / 2).softmax(-1), (ours / 2).softmax(-1)
    expected = 4 * (p * (p / q).log()).sum(-1).mean()
    torch.testing.assert_close(losses['loss_distill_logits'], expected)
    with pytest.raises(ValueError, match='two losses'):
        make(extra_losses=[logits, logits])
    with pytest.raises(ValueError, match='temperature'):
        SoftTargetLoss(temperature=0)


def test_outputs_that_do_not_fit():
    taps = {'backbone.layers.0.mixer': 'backbone.layers.0.mixer.in_proj'}
    model = make(taps=taps)
    with pytest.raises(ValueError, match='expected one shape'):
        model(**batch(), mode='loss')
    # The student runs its own head twice.
    model = make(taps='fc')
    forward = model.student.forward
    model.student.forward = lambda *a, **k: (forward(*a), forward(*a, **k))[1]
    with pytest.raises(ValueError, match='ran 2 times.* 1 times'):
        model(**batch(), mode='loss')
    model = make(taps='data_preprocessor')
    with pytest.raises(ValueError, match='ran 0 times'):
        model(**batch(), mode='loss')


def test_what_can_be_student_and_teacher():
    data = batch()
    backbone = Vim(**ARCH)
    model = make(
        teacher=backbone,
        taps={'backbone.layers.*.mixer': 'layers.*.mixer'},
    )
    assert model(**data, mode='loss')['feature_l1'] > 0
    with pytest.raises(TypeError, match='expected a BaseModel'):
        make(student=Vim(**ARCH))
    with pytest.raises(ValueError, match='no weights'):
        make(teacher=dict(type='TinyClassifier'))


DENSE = dict(
    backbone=dict(
        type='mmssm.TCPVim',
        **ARCH,
        out_type='featmap',
        mixer=dict(num_groups=4),
    )
)
PREPROCESS = dict(mean=[0.0], std=[50.0])


def segmentor():
    from mmseg.structures import SegDataSample

    sample = SegDataSample(
        gt_sem_seg=PixelData(data=torch.randint(0, 3, (1, 16, 16)))
    )
    model = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(
            type='SegDataPreProcessor', size=(16, 16), **PREPROCESS
        ),
        **DENSE,
        decode_head=dict(
            type='FCNHead',
            in_channels=16,
            in_index=0,
            channels=8,
            num_convs=1,
            num_classes=3,
        ),
        test_cfg=dict(mode='whole'),
    )
    return model, sample


def detector():
    from mmdet.structures import DetDataSample

    sample = DetDataSample(metainfo=dict(scale_factor=(1.0, 1.0)))
    sample.gt_instances = InstanceData(
        bboxes=torch.tensor([[1.0, 1.0, 9.0, 9.0]]), labels=torch.tensor([1])
    )
    model = dict(
        type='RetinaNet',
        data_preprocessor=dict(type='DetDataPreprocessor', **PREPROCESS),
        **DENSE,
        neck=None,
        bbox_head=dict(
            type='RetinaHead',
            num_classes=2,
            in_channels=16,
            stacked_convs=1,
            feat_channels=8,
            anchor_generator=dict(
                type='AnchorGenerator',
                octave_base_scale=2,
                scales_per_octave=1,
                ratios=[1.0],
                strides=[4],
            ),
            bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        ),
        train_cfg=dict(
            assigner=dict(
                type='MaxIoUAssigner',
                pos_iou_thr=0.5,
                neg_iou_thr=0.4,
                min_pos_iou=0,
            ),
            sampler=dict(type='PseudoSampler'),
            allowed_border=-1,
            pos_weight=-1,
        ),
        test_cfg=dict(
            nms_pre=10,
            min_bbox_size=0,
            score_thr=0.05,
            nms=dict(type='nms', iou_threshold=0.5),
            max_per_img=5,
        ),
    )
    return model, sample


@pytest.mark.parametrize(
    'library, task', [('mmseg', segmentor), ('mmdet', detector)]
)
def test_tasks_of_the_parent_libraries(library, task):
    """A dense student learns from a bare backbone."""
    pytest.importorskip(library)
    student, sample = task()
    size = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), (16, 16))
    sample.set_metainfo(dict(size, img_id=0))
    image = torch.randint(0, 255, (1, 16, 16), dtype=torch.uint8)
    data = dict(inputs=[image], data_samples=[sample])
    with DefaultScope.overwrite_default_scope(library):
        model = MODELS.build(
            dict(
                type='mmssm.FeatureDistiller',
                student=ConfigDict(student),
                teacher=Vim(**ARCH),
                taps={'backbone.layers.*.mixer': 'layers.*.mixer'},
            )
        )
        optim = OptimWrapper(torch.optim.SGD(model.parameters(), 1e-2))
        logged = model.train().train_step(data, optim)
        assert logged['feature_l1'] > 0 and logged['loss'].isfinite()
        predicted = model.eval().val_step(data)
    assert len(predicted) == 1 and type(predicted[0]) is type(sample)


def test_teacher_from_a_file(tmp_path):
    path = tmp_path / 'teacher.pth'
    original = TinyClassifier()
    torch.save(dict(state_dict=original.state_dict(), meta={}), path)
    config = dict(type='TinyClassifier')
    for options in (
        dict(teacher=config, teacher_ckpt=str(path)),
        dict(
            teacher=dict(
                type='mmssm.Vim',
                **ARCH,
                init_cfg=dict(
                    type='Pretrained', checkpoint=str(path), prefix='backbone.'
                ),
            ),
            taps={'backbone.layers.*.mixer': 'layers.*.mixer'},
        ),
    ):
        for prepare in (
            lambda model: model.init_weights(),
            lambda model: model(**batch(), mode='loss'),
        ):
            model = make(**options)
            prepare(model)
            expected = original.state_dict()
            prefix = (
                ''
                if 'fc.weight' in model.teacher.state_dict()
                else ('backbone.')
            )
            for name, value in model.teacher.state_dict().items():
                assert torch.equal(value, expected[prefix + name]), name
    with pytest.raises(FileNotFoundError, match='no checkpoint at'):
        make(teacher=config, teacher_ckpt='nowhere.pth').init_weights()
    torch.save(dict(state_dict=Vim(**ARCH).state_dict()), path)
    with pytest.raises(ValueError, match='does not fit the teacher'):
        make(teacher=config, teacher_ckpt=str(path)).init_weights()


def test_student_starts_from_the_teacher():
    model = make(init_student_from_teacher=True)
    model.init_weights()
    ours, theirs = model.student.state_dict(), model.teacher.state_dict()
    same = {n for n in ours if n in theirs and ours[n].equal(theirs[n])}
    operator = ('rho', 'theta', 'sign', 'x_proj', 'up_proj')
    assert same == {n for n in ours if not any(part in n for part in operator)}


def test_only_what_means_the_same_is_copied():
    # 2 * 15 + 3 + 2 rows of x_proj, as many as 3 + 2 * 16.
    settings = dict(num_groups=4, rank=15, num_reals=1, num_pairs=1)
    student = TinyClassifier(tcp=True, mixer=settings)
    teacher = TinyClassifier(
        mixer=dict(type='SelectiveScanMixer', dt_rank=3, d_state=16)
    )
    name = 'backbone.layers.0.mixer.forward_scan.x_proj.weight'
    assert student.state_dict()[name].shape == teacher.state_dict()[name].shape
    assert name not in copy_shared_weights(student, teacher).copied
    twin = copy.deepcopy(teacher)
    copied, total = copy_shared_weights(twin, teacher)
    assert name in copied and len(copied) == total
    with pytest.raises(ValueError, match='share no tensor'):
        copy_shared_weights(nn.Linear(2, 2), teacher)


def test_checkpointed_activations_give_the_same_gradients():
    gradients = []
    for with_cp in (False, True):
        student = TinyClassifier(tcp=True, with_cp=with_cp)
        torch.manual_seed(1)
        for parameter in student.parameters():
            nn.init.normal_(parameter, std=0.1)
        model = make(student=student, loss_weight=1.0).train()
        total, _ = model.parse_losses(model(**batch(), mode='loss'))
        total.backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_autocast():
    model = make(loss_weight=1.0)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        losses = model(**batch(), mode='loss')
    assert losses['loss_distill_feature'].dtype == torch.float32
    exact = model(**batch(), mode='loss')['feature_l1']
    torch.testing.assert_close(
        losses['feature_l1'], exact, rtol=0.05, atol=1e-3
    )
    sum(v for k, v in losses.items() if 'loss' in k).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


def test_lanes_of_teacher_and_student_go_on():
    student = build()
    model = FeatureDistiller(student, copy.deepcopy(student))
    assert model.feature_pairs == [
        (f'temporal.blocks.{i}.mixer',) * 2 for i in range(2)
    ]
    clips = clips_of(*video('a', 3 * CLIP_LEN, 1))
    windows = [clips[:2], clips[2:3]]

    def distances(between):
        found = []
        for window in windows:
            data = model.data_preprocessor(batch_of([window]))
            found.append(float(model(**data, mode='loss')['feature_l1']))
            between()
        return found

    # Twins: equal in every window, if both carry their lanes.
    assert distances(lambda: None) == [0, 0]

    def forget():
        held, state = model.teacher._carry['loss']
        mask = torch.ones(held, dtype=torch.bool)
        model.teacher._carry['loss'] = held, state.reset(mask)

    first, second = distances(forget)
    assert first == 0 and second > 1e-6
    # A validation in between leaves the lanes of the teacher alone.
    before = model.teacher._carry['loss']
    with torch.no_grad():
        model.val_step(batch_of([clips[:1]]))
    assert model.teacher._carry['loss'] is before


def _train_in_two_processes(rank, folder, queue):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE='2', LOCAL_RANK=str(rank))
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2
    )
    model = make(loss_weight=1.0)
    wrapped = MMDistributedDataParallel(model)
    optim = OptimWrapper(torch.optim.SGD(model.parameters(), 0.1))
    data = batch(8)
    mine = {k: v[rank::2] for k, v in data.items()}
    for _ in range(2):
        wrapped.train_step(mine, optim)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    queue.put((rank, weights.numpy(), len(model.state_dict())))
    torch.distributed.destroy_process_group()


def test_two_processes(tmp_path):
    context = torch.multiprocessing.get_context('spawn')
    queue = context.SimpleQueue()
    workers = [
        context.Process(
            target=_train_in_two_processes, args=(rank, tmp_path, queue)
        )
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    results = {}
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    while not queue.empty():
        rank, weights, _ = queue.get()
        results[rank] = torch.from_numpy(weights)
    assert results[0].isfinite().all() and results[0].equal(results[1])
    start = make().parameters()
    assert not results[0].equal(torch.cat([p.flatten() for p in start]))


def _runner(folder, epochs, teacher, **kwargs):
    return Runner(
        model=dict(
            type='FeatureDistiller',
            student=dict(type='TinyClassifier', tcp=True),
            teacher=dict(type='TinyClassifier'),
            teacher_ckpt=str(teacher),
            init_student_from_teacher=True,
            loss_weight=1.0,
        ),
        work_dir=str(folder),
        experiment_name=f'{folder}{epochs}',
        train_dataloader=dict(
            batch_size=4,
            num_workers=0,
            collate_fn=dict(type='default_collate'),
            sampler=dict(type='DefaultSampler', shuffle=True),
            dataset=dict(type='TinyImages'),
        ),
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-3)),
        data_preprocessor=dict(type='BaseDataPreprocessor'),
        randomness=dict(seed=3),
        default_scope='mmssm',
        log_level='ERROR',
        **kwargs,
    )


def test_resumed_training_equals_one_without_a_break(tmp_path):
    teacher = tmp_path / 'teacher.pth'
    torch.manual_seed(7)
    torch.save(TinyClassifier().state_dict(), teacher)
    whole = _runner(tmp_path / 'whole', 2, teacher)
    whole.train()
    _runner(tmp_path / 'parts', 1, teacher).train()
    again = _runner(
        tmp_path / 'parts',
        2,
        teacher,
        resume=True,
        load_from=str(tmp_path / 'parts/epoch_1.pth'),
    )
    again.train()
    assert again.iter == whole.iter == 4
    saved = torch.load(tmp_path / 'whole/epoch_2.pth', weights_only=False)
    assert all(name.startswith('student.') for name in saved['state_dict'])
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(value, again.model.state_dict()[name])
    for name, value in torch.load(teacher).items():
        assert torch.equal(again.model.teacher.state_dict()[name], value)
