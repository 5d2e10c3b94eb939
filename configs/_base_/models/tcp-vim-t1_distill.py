# TCP-Vim-T1 that learns the features of a frozen Vim-Tiny. Variants set
# `model.student.backbone`.
_augments = [dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]
_head = dict(
    type='LinearClsHead',
    num_classes=1000,
    in_channels=192,
    init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
)

model = dict(
    type='mmssm.FeatureDistiller',
    student=dict(
        type='ImageClassifier',
        backbone=dict(
            type='mmssm.TCPVim', arch='t1', img_size=224, patch_size=16
        ),
        head=_head,
        train_cfg=dict(augments=_augments),
    ),
    teacher=dict(
        type='ImageClassifier',
        backbone=dict(
            type='mmssm.Vim', arch='tiny', img_size=224, patch_size=16
        ),
        head=_head,
    ),
    # The published Vim-Tiny, converted by tools/model_converters.
    teacher_ckpt='checkpoints/vim-tiny.pth',
    loss_weight=6e-2,
    # The paper does not say that the student starts from the teacher.
    init_student_from_teacher=False,
)
