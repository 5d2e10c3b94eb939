# DeiT's schedule for 1024 images per step. The base has AdamW, its learning
# rate of 5e-4 * 1024 / 512 and 300 epochs, with another decay and warm-up.
_base_ = 'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py'

optim_wrapper = dict(
    optimizer=dict(weight_decay=0.1),
    paramwise_cfg=dict(
        # The base has no decay of vectors: biases, norms and D.
        custom_keys={
            '.A_log': dict(decay_mult=0.0),
            'rho_hat': dict(decay_mult=0.0),
            '.theta_hat': dict(decay_mult=0.0),
            '.sign_hat': dict(decay_mult=0.0),
            '.residues': dict(decay_mult=0.0),
            '.pos_embed': dict(decay_mult=0.0),
            '.cls_token': dict(decay_mult=0.0),
        },
    ),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5),
]
custom_hooks = [
    dict(
        type='EMAHook',
        momentum=1 - 0.99996,
        priority='ABOVE_NORMAL',
    )
]
