# 198,556,403 parameters with 7 phases. Its `clip_len` is the dataset's: the
# configs that use this base pass it on.
model = dict(
    type='PhaseRecognizer',
    data_preprocessor=dict(type='PhaseDataPreprocessor'),
    backbone=dict(
        type='TimmBackbone',
        model_name='convnext_tiny',
        # ImageNet weights: pretrained=True lets timm fetch them, checkpoint=
        # names a local file.
        pretrained=True,
        frozen_stages=2,
    ),
    temporal=dict(
        type='SurgicalMamba',
        in_channels=768,
        d_model=768,
        num_layers=4,
        d_state=64,
        d_conv=4,
        expand=2,
        chunk_size_slow=64,
        chunk_size_fast=64,
        rotation_rank=16,
        dropout=0.1,
    ),
    head=dict(
        type='PhaseHead',
        in_channels=768,
        num_classes=7,
        d_state=64,
        chunk_size=32,
        rotation_rank=16,
        dropout=0.1,
        loss_cls=dict(type='PhaseCrossEntropyLoss', label_smoothing=0.1),
        loss_smooth=dict(type='ConfidenceSmoothnessLoss'),
        loss_intensity=dict(
            type='TransitionIntensityLoss', sigma_left=2.0, sigma_right=12.0
        ),
    ),
)
