# Cholec80, videos 1-40 for training and 41-80 for testing, no validation.
# Frames at 1 fps, black margins cut, 250 x 250.
data_root = 'data/cholec80/'
clip_len = 128
dataset_type = 'Cholec80Dataset'
image_size = 224

# As published: everything is drawn anew for every frame.
train_pipeline = [
    dict(type='LoadFrames'),
    dict(
        type='TorchVisionTransform',
        transform=dict(type='Resize', size=264, antialias=True),
    ),
    dict(
        type='TorchVisionTransform',
        scope='frame',
        transform=dict(
            type='RandomApply',
            p=0.5,
            transforms=[
                dict(
                    type='RandomAffine',
                    degrees=15,
                    translate=(0.05, 0.05),
                    scale=(0.95, 1.05),
                    interpolation='bilinear',
                )
            ],
        ),
    ),
    dict(
        type='TorchVisionTransform',
        scope='frame',
        transform=dict(type='RandomCrop', size=image_size),
    ),
    dict(type='RGBShift', limit=15, prob=0.5, scope='frame'),
    dict(
        type='ClipColorJitter',
        brightness=0.2,
        contrast=0.2,
        prob=0.5,
        scope='frame',
    ),
]
test_pipeline = [
    dict(type='LoadFrames'),
    dict(
        type='TorchVisionTransform',
        transform=dict(type='Resize', size=image_size, antialias=True),
    ),
    dict(
        type='TorchVisionTransform',
        transform=dict(type='CenterCrop', size=image_size),
    ),
]

train_dataloader = dict(
    batch_size=1,  # lanes
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='VideoOrderSampler', shuffle=True),
    # Gradients are cut after 6 clips.
    batch_sampler=dict(type='LaneBatchSampler', clips_per_window=6),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='40-40/train',
        clip_len=clip_len,
        pipeline=train_pipeline,
    ),
)
test_dataloader = dict(
    batch_size=1,
    num_workers=4,
    sampler=dict(type='VideoOrderSampler', shuffle=False),
    batch_sampler=dict(type='LaneBatchSampler', clips_per_window=2),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='40-40/test',
        clip_len=clip_len,
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_evaluator = dict(type='PhaseMetric')
