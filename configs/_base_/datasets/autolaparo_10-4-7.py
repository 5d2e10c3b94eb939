# AutoLaparo task 1: 10 training, 4 validation and 7 test videos.
_base_ = './cholec80_40-40.py'

data_root = 'data/autolaparo/'
dataset_type = 'AutoLaparoDataset'

train_dataloader = dict(
    batch_sampler=dict(clips_per_window=12),
    dataset=dict(type=dataset_type, data_root=data_root, split='10-4-7/train'),
)
test_dataloader = dict(
    dataset=dict(type=dataset_type, data_root=data_root, split='10-4-7/test')
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='VideoOrderSampler', shuffle=False),
    batch_sampler=dict(type='LaneBatchSampler', clips_per_window=2),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='10-4-7/val',
        clip_len={{_base_.clip_len}},
        pipeline={{_base_.test_pipeline}},
        test_mode=True,
    ),
)
val_evaluator = dict(type='PhaseMetric')
