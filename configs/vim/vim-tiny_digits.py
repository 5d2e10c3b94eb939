# OMP_NUM_THREADS=1 python tools/train.py configs/vim/vim-tiny_digits.py
# Expected: top-1 of at least 97 % on the 450 test images.
_base_ = [
    '../_base_/models/vim-tiny_digits.py',
    '../_base_/datasets/digits.py',
    '../_base_/schedules/adamw-coslr_digits.py',
    'mmpretrain::_base_/default_runtime.py',
]

max_epochs = 26
warmup_epochs = 0.05 * max_epochs

train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        begin=0,
        end=warmup_epochs,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        begin=warmup_epochs,
        end=max_epochs,
        T_max=max_epochs - warmup_epochs,
        eta_min=0.0,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
randomness = dict(seed=0)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=2))
