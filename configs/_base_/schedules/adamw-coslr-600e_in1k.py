# The schedule of TCP-SSM for 256 images per step. What the paper leaves open
# is DeiT's: decay, warm-up, EMA.
_base_ = './adamw-coslr-300e_in1k.py'

optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=0.05))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-2,
        by_epoch=True,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5),
]
train_cfg = dict(max_epochs=600)
auto_scale_lr = dict(base_batch_size=256)
custom_hooks = [
    dict(
        type='EMAHook',
        momentum=1 - 0.99996,
        priority='ABOVE_NORMAL',
    ),
    dict(type='mmssm.PoleStabilityHook', interval=1000),
]
