# bash tools/dist_train.sh configs/vim/vim-small-p16_8xb64-300e_in1k.py 8
# Expected: top-1 of 80.5 % as published; not run here.
_base_ = [
    '../_base_/models/vim-tiny.py',
    '../_base_/datasets/imagenet_224_deit.py',
    '../_base_/schedules/adamw-coslr-300e_in1k.py',
    'mmpretrain::_base_/default_runtime.py',
]

model = dict(
    backbone=dict(arch='small', drop_path_rate=0.05),
    head=dict(in_channels=384),
)
train_dataloader = dict(batch_size=64)
# 1e-3 * 512 / 512, as in the base.
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
auto_scale_lr = dict(base_batch_size=512)
