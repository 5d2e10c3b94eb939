# bash tools/dist_train.sh configs/tcp_vim/tcp-vim-t1_8xb32-distill-600e_in1k.py 8
# Expected: top-1 of 76.0 % as published; not run here.
_base_ = [
    '../_base_/models/tcp-vim-t1_distill.py',
    '../_base_/datasets/imagenet_224_deit.py',
    '../_base_/schedules/adamw-coslr-600e_in1k.py',
    'mmpretrain::_base_/default_runtime.py',
]

train_dataloader = dict(batch_size=32)
