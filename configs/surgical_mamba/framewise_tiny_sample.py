# python tools/train.py configs/surgical_mamba/framewise_tiny_sample.py
# Expected: strict accuracy 53 to 59 % on unseen sample videos (seeds 0 to 2).
# Per-frame classifier on shuffled frames: the baseline without any memory and
# the start of the sample models' backbone.
_base_ = [
    '../_base_/models/surgical-mamba_tiny.py',
    '../_base_/datasets/sample.py',
    '../_base_/schedules/adamw_10e_sample.py',
    '../_base_/default_runtime.py',
]

model = dict(
    clip_len=1,
    temporal=dict(
        _delete_=True,  # the SurgicalMamba of the base
        type='Framewise',
        in_channels=128,
        d_model=128,
    ),
    head=dict(
        _delete_=True,  # the SSD head of the base
        type='LinearPhaseHead',
        in_channels=128,
        num_classes=7,
        loss_cls=dict(type='PhaseCrossEntropyLoss', label_smoothing=0.1),
    ),
)

train_dataloader = dict(
    batch_size=128,
    sampler=dict(
        _delete_=True,  # videos in order
        type='ShuffledFrameSampler',
        frames_per_epoch=3840,
    ),
    batch_sampler=None,
    dataset=dict(clip_len=1),
)
val_dataloader = dict(
    batch_sampler=dict(clips_per_window=256), dataset=dict(clip_len=1)
)
test_dataloader = val_dataloader

optim_wrapper = dict(
    optimizer=dict(lr=2e-3),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=1.0))),
)
auto_scale_lr = dict(base_batch_size=128)  # frames
