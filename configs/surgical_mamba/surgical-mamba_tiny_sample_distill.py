# python tools/train.py configs/surgical_mamba/surgical-mamba_tiny_sample_distill.py
# An example of distillation, without an expected result: a SurgicalMamba of
# one block and half the state learns the features of the last block of
# surgical-mamba_tiny_sample.py, which is trained before.
_base_ = [
    '../_base_/models/surgical-mamba_tiny.py',
    '../_base_/datasets/sample.py',
    '../_base_/schedules/adamw_10e_sample.py',
    '../_base_/default_runtime.py',
]

model = dict(
    _delete_=True,  # the recognizer of the base, which is the teacher here
    type='FeatureDistiller',
    student=dict(
        type='PhaseRecognizer',
        clip_len={{_base_.clip_len}},
        data_preprocessor={{_base_.model.data_preprocessor}},
        backbone={{_base_.model.backbone}},
        temporal=dict(
            type='SurgicalMamba',
            in_channels=128,
            d_model=128,
            num_layers=1,
            d_state=8,
            chunk_size_slow=32,
            chunk_size_fast=32,
            rotation_rank=4,
            dropout=0.1,
        ),
        head={{_base_.model.head}},
    ),
    teacher=dict(
        type='PhaseRecognizer',
        clip_len={{_base_.clip_len}},
        data_preprocessor={{_base_.model.data_preprocessor}},
        backbone={{_base_.model.backbone}},
        temporal={{_base_.model.temporal}},
        head={{_base_.model.head}},
    ),
    teacher_ckpt='work_dirs/surgical-mamba_tiny_sample/epoch_10.pth',
    taps={'temporal.blocks.0.mixer': 'temporal.blocks.1.mixer'},
    loss_weight=6e-2,
    init_student_from_teacher=True,
)
