"""Tiny data sets and configs of the parent libraries, written by tests.

Each function writes what it needs below ``root`` and returns the path of the
config. Models are built from the ``_base_`` files of the libraries.
"""

import json
from pathlib import Path

import cv2
import numpy as np

SIZE = 64

COMMON = """
work_dir = {work_dir!r}
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=2, val_interval=2)
val_cfg = dict()
test_cfg = dict()
param_scheduler = []
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
auto_scale_lr = dict(enable=False, base_batch_size=16)
randomness = dict(seed=0)
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1),
    visualization=dict(type={hook!r}))
"""


def _image(seed: int) -> np.ndarray:
    """Return noise with a bright square, whose place depends on the seed."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 100, (SIZE, SIZE, 3), dtype=np.uint8)
    offset = 8 * (seed % 4)
    image[offset : offset + 32, offset : offset + 32, seed % 2] = 255
    return image


def _write_config(root: Path, text: str, hook: str) -> Path:
    path = root / 'config.py'
    common = COMMON.format(work_dir=str(root / 'work'), hook=hook)
    path.write_text(text.replace('DATA', repr(str(root / 'data'))) + common)
    return path


CLASSIFICATION = """
_base_ = [
    'mmpretrain::_base_/models/resnet18.py',
    'mmpretrain::_base_/default_runtime.py',
]
model = dict(head=dict(num_classes=2, topk=(1, )))
data_preprocessor = dict(
    num_classes=2, mean=[120] * 3, std=[60] * 3, to_rgb=True)
train_dataloader = dict(
    batch_size=4, num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset', data_root=DATA, data_prefix='train',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomFlip', prob=0.5, direction='horizontal'),
            dict(type='PackInputs'),
        ]))
test_dataloader = dict(
    batch_size=2, num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset', data_root=DATA, data_prefix='test',
        pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
val_dataloader = test_dataloader
test_evaluator = dict(type='Accuracy', topk=(1, ))
val_evaluator = test_evaluator
"""


def write_classification(root: Path) -> Path:
    """Write an mmpretrain project: ResNet-18 on two classes of images."""
    # An odd number of test images: two processes get one of them twice. The
    # last is in the wrong folder, so that no model is right everywhere.
    for split, count in (('train', 8), ('test', 9)):
        for seed in range(count):
            name = 'b' if seed == 8 else 'ab'[seed % 2]
            folder = root / 'data' / split / name
            folder.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / f'{seed}.png'), _image(seed))
    return _write_config(root, CLASSIFICATION, 'VisualizationHook')


SEGMENTATION = """
_base_ = [
    'mmseg::_base_/models/upernet_r50.py',
    'mmseg::_base_/default_runtime.py',
]
model = dict(
    pretrained=None,
    data_preprocessor=dict(size=(64, 64)),
    backbone=dict(depth=18),
    decode_head=dict(
        in_channels=[64, 128, 256, 512], channels=16, num_classes=3),
    auxiliary_head=dict(in_channels=256, channels=16, num_classes=3))
metainfo = dict(
    classes=('x', 'y', 'z'), palette=[[0] * 3, [255] * 3, [99] * 3])
load = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
dataset = dict(
    type='BaseSegDataset', data_root=DATA, metainfo=metainfo,
    data_prefix=dict(img_path='images', seg_map_path='labels'),
    img_suffix='.png', seg_map_suffix='.png', pipeline=load)
train_dataloader = dict(
    batch_size=2, num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True), dataset=dataset)
test_dataloader = dict(
    batch_size=1, num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False), dataset=dataset)
val_dataloader = test_dataloader
test_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
val_evaluator = test_evaluator
"""


def write_segmentation(root: Path) -> Path:
    """Write an mmseg project: UPerNet (with SyncBN) on two images."""
    for name in ('images', 'labels'):
        (root / 'data' / name).mkdir(parents=True)
    for seed in range(2):
        image = _image(seed)
        cv2.imwrite(str(root / f'data/images/{seed}.png'), image)
        label = (image.max(axis=2) == 255).astype(np.uint8) * (1 + seed)
        cv2.imwrite(str(root / f'data/labels/{seed}.png'), label)
    return _write_config(root, SEGMENTATION, 'SegVisualizationHook')


DETECTION = """
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/default_runtime.py',
]
model = dict(
    backbone=dict(depth=18, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=32),
        bbox_head=dict(in_channels=32, fc_out_channels=32, num_classes=2),
        mask_roi_extractor=dict(out_channels=32),
        mask_head=dict(
            in_channels=32, conv_out_channels=32, num_convs=1,
            num_classes=2)),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=100, max_per_img=20),
        rcnn=dict(sampler=dict(num=16))),
    test_cfg=dict(rpn=dict(nms_pre=100, max_per_img=20)))
metainfo = dict(classes=('a', 'b'))
dataset = dict(
    type='CocoDataset', data_root=DATA, ann_file='annotations.json',
    metainfo=metainfo, data_prefix=dict(img='images'))
train_dataloader = dict(
    batch_size=2, num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackDetInputs'),
        ], **dataset))
test_dataloader = dict(
    batch_size=1, num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=(64, 64)),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(
                type='PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                           'scale_factor')),
        ], **dataset))
val_dataloader = test_dataloader
test_evaluator = dict(
    type='CocoMetric', metric=['bbox', 'segm'],
    ann_file=DATA + '/annotations.json')
val_evaluator = test_evaluator
"""


def write_detection(root: Path) -> Path:
    """Write an mmdet project: Mask R-CNN on four images with squares."""
    (root / 'data/images').mkdir(parents=True)
    images, annotations = [], []
    for seed in range(4):
        name = f'{seed}.png'
        cv2.imwrite(str(root / 'data/images' / name), _image(seed))
        images.append(
            dict(id=seed, file_name=name, height=SIZE, width=SIZE),
        )
        start, end = 8 * seed, 8 * seed + 32
        annotations.append(
            dict(
                id=seed + 1,
                image_id=seed,
                category_id=seed % 2 + 1,
                bbox=[start, start, 32, 32],
                area=1024,
                iscrowd=0,
                segmentation=[
                    [start, start, end, start, end, end, start, end]
                ],
            )
        )
    categories = [dict(id=1, name='a'), dict(id=2, name='b')]
    (root / 'data/annotations.json').write_text(
        json.dumps(
            dict(
                images=images,
                annotations=annotations,
                categories=categories,
            )
        )
    )
    return _write_config(root, DETECTION, 'DetVisualizationHook')
