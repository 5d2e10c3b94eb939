"""AutoLaparo task 1: 21 videos of laparoscopic hysterectomy, 7 phases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmssm.datasets.base_surgical_dataset import BaseVideoPhaseDataset
from mmssm.registry import DATASETS

AUTOLAPARO_PHASES = (
    'Preparation',
    'DividingLigamentAndPeritoneum',
    'DividingUterineVesselsAndLigament',
    'TransectingTheVagina',
    'SpecimenRemoval',
    'Suturing',
    'Washing',
)
"""In the order of the released numbers 1 to 7."""

AUTOLAPARO_SPLITS = {
    '10-4-7/train': tuple(range(1, 11)),
    '10-4-7/val': tuple(range(11, 15)),
    '10-4-7/test': tuple(range(15, 22)),
}
"""Video numbers by ``'<protocol>/<part>'``."""


@DATASETS.register_module()
class AutoLaparoDataset(BaseVideoPhaseDataset):
    """AutoLaparo: a row per second, frames and phases counted from 1.

    Arguments, policies and errors are those of
    :class:`BaseVideoPhaseDataset`; files are ``frames/01/*.jpg`` and
    ``labels/label_01.txt``. Copies of the labels that count phases from 0
    circulate: set ``first_phase=0`` for them.

    Args:
        data_root (str | Path): Folder of the dataset.
        split (str | Sequence[int]): A name in ``AUTOLAPARO_SPLITS`` or the
            numbers of videos.
        clip_len (int): Frames of a clip.
        phase_dir (str): Defaults to ``'labels'``.
        annotation_fps (int): Defaults to 1.
        video_template (str): Defaults to ``'{:02d}'``.
        phase_template (str): Defaults to ``'label_{}.txt'``.
        first_frame (int): Defaults to 1.
        first_phase (int): Defaults to 1.
        **kwargs: As in :class:`BaseVideoPhaseDataset`.

    Source: Wang et al., AutoLaparo, MICCAI 2022.
    """

    METAINFO = dict(classes=AUTOLAPARO_PHASES)
    SPLITS = AUTOLAPARO_SPLITS

    def __init__(
        self,
        data_root: str | Path,
        split: str | Sequence[int],
        clip_len: int,
        phase_dir: str = 'labels',
        annotation_fps: int = 1,
        video_template: str = '{:02d}',
        phase_template: str = 'label_{}.txt',
        first_frame: int = 1,
        first_phase: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            data_root,
            split,
            clip_len,
            phase_dir=phase_dir,
            annotation_fps=annotation_fps,
            video_template=video_template,
            phase_template=phase_template,
            first_frame=first_frame,
            first_phase=first_phase,
            **kwargs,
        )
