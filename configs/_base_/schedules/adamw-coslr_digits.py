# AdamW, 5 % of warm-up, then a cosine down to 0. Configs of other lengths set
# `max_epochs`, `end` of the warm-up, and `begin`, `end` and `T_max` of the
# cosine.
max_epochs = 16
warmup_epochs = 0.05 * max_epochs

train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=max_epochs)
val_cfg = dict()
test_cfg = dict()

optim_wrapper = dict(
    optimizer=dict(
        type='AdamW', lr=2e-3, weight_decay=0.05, betas=(0.9, 0.999)
    ),
    clip_grad=dict(max_norm=1.0),
    paramwise_cfg=dict(
        # All vectors: biases, norms, D and the biases of the modulation.
        flat_decay_mult=0.0,
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
# For --auto-scale-lr.
auto_scale_lr = dict(enable=False, base_batch_size=64)
