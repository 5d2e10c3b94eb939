# As adamw-coslr_50e.py, over 100 epochs and down to 1e-6, with validation.
_base_ = './adamw-coslr_50e.py'

max_epochs = 100

train_cfg = dict(max_epochs=max_epochs)
val_cfg = dict()
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
        eta_min_ratio=0.01,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
