# OMP_NUM_THREADS=1 python tools/train.py configs/tcp_vim/tcp-vim-tiny_digits.py
# Expected: top-1 of at least 97 % on the 450 test images.
_base_ = [
    '../_base_/models/vim-tiny_digits.py',
    '../_base_/datasets/digits.py',
    '../_base_/schedules/adamw-coslr_digits.py',
    'mmpretrain::_base_/default_runtime.py',
]

model = dict(
    backbone=dict(type='mmssm.TCPVim', mixer=dict(num_groups=8)),
)
randomness = dict(seed=0)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=2))
