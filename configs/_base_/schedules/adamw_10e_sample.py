max_epochs = 10

train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=max_epochs)
val_cfg = dict()
test_cfg = dict()

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
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
        start_factor=1e-3,
        begin=0,
        end=1,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        begin=1,
        end=max_epochs,
        T_max=max_epochs - 1,
        eta_min_ratio=0.05,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
# For --auto-scale-lr: lanes over all processes.
auto_scale_lr = dict(enable=False, base_batch_size=2)
