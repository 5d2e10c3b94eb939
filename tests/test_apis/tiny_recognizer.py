"""A config and a checkpoint small enough to stream in a test."""

import torch
from mmengine.config import Config

from mmssm.registry import MODELS

CLASSES = ('Enter', 'Cut', 'Leave')
PALETTE = [(86, 180, 233), (230, 159, 0), (0, 158, 115)]
CLIP_LEN = 5
SIZE = 24

MODEL = dict(
    type='PhaseRecognizer',
    clip_len=CLIP_LEN,
    backbone=dict(type='StridedConvNet', channels=(8, 16)),
    temporal=dict(
        type='SurgicalMamba',
        in_channels=16,
        d_model=16,
        num_layers=2,
        d_state=8,
        chunk_size_slow=4,
        chunk_size_fast=2,
        rotation_rank=2,
        headdim=8,
    ),
    head=dict(
        type='PhaseHead',
        in_channels=16,
        num_classes=len(CLASSES),
        loss_cls=dict(type='PhaseCrossEntropyLoss'),
        d_state=8,
        chunk_size=3,
        rotation_rank=2,
        headdim=8,
    ),
)
CONFIG = dict(
    default_scope='mmssm',
    model=MODEL,
    test_dataloader=dict(
        dataset=dict(
            type='Cholec80Dataset',
            fps=1,
            metainfo=dict(classes=CLASSES, palette=PALETTE),
            pipeline=[
                dict(type='LoadFrames'),
                dict(
                    type='TorchVisionTransform',
                    transform=dict(type='Resize', size=(SIZE, SIZE)),
                ),
            ],
        )
    ),
)


def build_model(seed=0):
    """Build the model with weights that make predictions differ."""
    torch.manual_seed(seed)
    model = MODELS.build(dict(MODEL, _scope_='mmssm'))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def write_files(folder, trained, meta=None, **changes):
    """Write the config and a checkpoint as a run of mmengine does.

    Returns:
        tuple[Path, Path]: Config and checkpoint.
    """
    config, checkpoint = folder / 'tiny.py', folder / 'tiny.pth'
    Config(dict(CONFIG, **changes)).dump(config)
    meta = dict(classes=CLASSES, palette=PALETTE) if meta is None else meta
    torch.save(
        dict(state_dict=trained.state_dict(), meta=dict(dataset_meta=meta)),
        checkpoint,
    )
    return config, checkpoint
