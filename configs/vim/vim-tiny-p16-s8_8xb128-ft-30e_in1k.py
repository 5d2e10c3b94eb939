# bash tools/dist_train.sh configs/vim/vim-tiny-p16-s8_8xb128-ft-30e_in1k.py 8
# Expected: top-1 of 78.3 % as published; not run here. Patches of 16 pixels
# every 8, starting from the weights of the 14 x 14 grid with their positions
# interpolated (--grid 27 27 of the converter).
_base_ = './vim-tiny-p16_8xb128-300e_in1k.py'

model = dict(backbone=dict(stride=8, drop_path_rate=0.0))
train_dataloader = dict(batch_size=128)
# 5e-6 * 1024 / 512, which is also the published lower bound: a constant.
optim_wrapper = dict(optimizer=dict(lr=1e-5, weight_decay=1e-8))
param_scheduler = None
train_cfg = dict(max_epochs=30)
auto_scale_lr = dict(base_batch_size=1024)
load_from = 'checkpoints/vim-tiny_27x27.pth'
