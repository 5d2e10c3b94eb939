# A model that a laptop's CPU trains in minutes on frames of 64 pixels. Its
# `clip_len` is the dataset's: the configs that use this base pass it on.
model = dict(
    type='PhaseRecognizer',
    data_preprocessor=dict(type='PhaseDataPreprocessor'),
    backbone=dict(type='StridedConvNet', channels=(16, 32, 64, 128)),
    temporal=dict(
        type='SurgicalMamba',
        in_channels=128,
        d_model=128,
        num_layers=2,
        d_state=16,
        chunk_size_slow=32,
        chunk_size_fast=32,
        rotation_rank=4,
        dropout=0.1,
    ),
    head=dict(
        type='PhaseHead',
        in_channels=128,
        num_classes=7,
        d_state=16,
        chunk_size=32,
        rotation_rank=4,
        dropout=0.1,
        loss_cls=dict(type='PhaseCrossEntropyLoss', label_smoothing=0.1),
        loss_smooth=dict(type='ConfidenceSmoothnessLoss'),
        # Narrower than published: the sample's phases last seconds to
        # minutes, and with (2, 12) most frames would count as transitions.
        loss_intensity=dict(
            type='TransitionIntensityLoss', sigma_left=1.0, sigma_right=3.0
        ),
    ),
)
