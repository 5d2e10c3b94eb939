"""M2CAI16-workflow: 41 videos of laparoscopic cholecystectomy, 8 phases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmssm.datasets.base_surgical_dataset import BaseVideoPhaseDataset
from mmssm.registry import DATASETS

M2CAI16_PHASES = (
    'TrocarPlacement',
    'Preparation',
    'CalotTriangleDissection',
    'ClippingCutting',
    'GallbladderDissection',
    'GallbladderPackaging',
    'CleaningCoagulation',
    'GallbladderRetraction',
)
"""Cholec80's phases after TrocarPlacement, which Cholec80 does not have."""

M2CAI16_PALETTE = (
    (153, 153, 153),
    (86, 180, 233),
    (230, 159, 0),
    (204, 51, 63),
    (0, 114, 178),
    (0, 158, 115),
    (204, 121, 167),
    (240, 228, 66),
)

_TRAIN = tuple(f'workflow_video_{number:02d}' for number in range(1, 28))
_TEST = tuple(f'test_workflow_video_{number:02d}' for number in range(1, 15))

M2CAI16_SPLITS = {
    '27-14/train': _TRAIN,
    '27-14/test': _TEST,
    '20-7-14/train': _TRAIN[:20],
    '20-7-14/val': _TRAIN[20:],
    '20-7-14/test': _TEST,
}
"""Video names by ``'<protocol>/<part>'``; 27-14 is the challenge's."""


@DATASETS.register_module()
class M2CAI16Dataset(BaseVideoPhaseDataset):
    """M2CAI16-workflow: rows per 25-fps frame, phases by name.

    Arguments, policies and errors are those of
    :class:`BaseVideoPhaseDataset`; files are ``frames/<video>/*.jpg`` and
    ``<phase_dir>/<video>.txt``.

    Args:
        data_root (str | Path): Folder of the dataset.
        split (str | Sequence[str]): A name in ``M2CAI16_SPLITS`` or the
            names of videos.
        clip_len (int): Frames of a clip.
        phase_template (str): Defaults to ``'{}.txt'``.
        **kwargs: As in :class:`BaseVideoPhaseDataset`.

    Source: Twinanda et al., workshop and challenges on modeling and
    monitoring of computer assisted interventions, 2016.
    """

    METAINFO = dict(classes=M2CAI16_PHASES, palette=list(M2CAI16_PALETTE))
    SPLITS = M2CAI16_SPLITS

    def __init__(
        self,
        data_root: str | Path,
        split: str | Sequence[str],
        clip_len: int,
        phase_template: str = '{}.txt',
        **kwargs: Any,
    ) -> None:
        super().__init__(
            data_root, split, clip_len, phase_template=phase_template, **kwargs
        )
