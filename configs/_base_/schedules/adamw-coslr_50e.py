# AdamW, 10 epochs of linear warm-up, then a cosine, in bfloat16.
max_epochs = 50

train_cfg = dict(by_epoch=True, max_epochs=max_epochs)
test_cfg = dict()

optim_wrapper = dict(
    type='AmpOptimWrapper',
    dtype='bfloat16',
    loss_scale=dict(enabled=False),  # bfloat16 has the range of float32
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.01),
    clip_grad=dict(max_norm=1.0),
    paramwise_cfg=dict(
        custom_keys={
            'backbone': dict(lr_mult=0.5),
            '.A_log': dict(decay_mult=0.0),
            '.D': dict(decay_mult=0.0),
        }
    ),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-6,
        begin=0,
        end=10,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        begin=10,
        end=max_epochs,
        T_max=max_epochs - 10,
        eta_min_ratio=0.1,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
# For --auto-scale-lr: lanes over all processes.
auto_scale_lr = dict(enable=False, base_batch_size=1)
