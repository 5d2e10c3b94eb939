# Sample videos of tools/demo/make_sample_videos.py, in Cholec80's layout.
data_root = 'data/sample/'
clip_len = 64
dataset_type = 'Cholec80Dataset'

train_pipeline = [
    dict(type='LoadFrames'),
    dict(type='VideoFlip', prob=0.5, direction='horizontal'),
    dict(type='VideoFlip', prob=0.5, direction='vertical'),
    dict(
        type='ClipColorJitter',
        brightness=0.2,
        contrast=0.2,
        saturation=0.2,
        scope='frame',
    ),
]
test_pipeline = [dict(type='LoadFrames')]

train_dataloader = dict(
    batch_size=2,  # lanes
    num_workers=0,
    sampler=dict(type='VideoOrderSampler', shuffle=True),
    batch_sampler=dict(type='LaneBatchSampler', clips_per_window=2),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split=list(range(1, 25)),
        clip_len=clip_len,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='VideoOrderSampler', shuffle=False),
    batch_sampler=dict(type='LaneBatchSampler', clips_per_window=4),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split=list(range(25, 33)),
        clip_len=clip_len,
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='PhaseMetric')
test_evaluator = val_evaluator
