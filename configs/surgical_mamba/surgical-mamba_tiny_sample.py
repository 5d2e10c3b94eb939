# python tools/train.py configs/surgical_mamba/surgical-mamba_tiny_sample.py
# Expected: strict accuracy 96 to 99 % on unseen sample videos (seeds 0 to 2).
# The visual backbone starts from framewise_tiny_sample.py, trained before.
_base_ = [
    '../_base_/models/surgical-mamba_tiny.py',
    '../_base_/datasets/sample.py',
    '../_base_/schedules/adamw_10e_sample.py',
    '../_base_/default_runtime.py',
]

model = dict(
    clip_len={{_base_.clip_len}},
    backbone=dict(
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/framewise_tiny_sample/epoch_10.pth',
            prefix='backbone.',
        )
    ),
)
