# bash tools/dist_train.sh configs/vim/vim-tiny-p16_8xb128-300e_in1k.py 8
# Expected: top-1 of 76.1 % as published; not run here.
_base_ = [
    '../_base_/models/vim-tiny.py',
    '../_base_/datasets/imagenet_224_deit.py',
    '../_base_/schedules/adamw-coslr-300e_in1k.py',
    'mmpretrain::_base_/default_runtime.py',
]

train_dataloader = dict(batch_size=128)
