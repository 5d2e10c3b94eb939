# Vim-Tiny for images of 224 x 224 pixels: 196 patches and the class token.
# Other sizes set `arch` and `in_channels`.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmssm.Vim', arch='tiny', img_size=224, patch_size=16),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=192,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
        loss=dict(
            type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'
        ),
    ),
    train_cfg=dict(
        augments=[
            dict(type='Mixup', alpha=0.8),
            dict(type='CutMix', alpha=1.0),
        ]
    ),
)
