"""Cholec80: 80 videos of laparoscopic cholecystectomy, 7 phases."""

from mmssm.datasets.base_surgical_dataset import BaseVideoPhaseDataset
from mmssm.registry import DATASETS

CHOLEC80_PHASES = (
    'Preparation',
    'CalotTriangleDissection',
    'ClippingCutting',
    'GallbladderDissection',
    'GallbladderPackaging',
    'CleaningCoagulation',
    'GallbladderRetraction',
)
"""Names in the order of their ids. Files are mapped by name: some releases
of the dataset number the last three differently."""

CHOLEC80_PALETTE = (
    (86, 180, 233),
    (230, 159, 0),
    (204, 51, 63),
    (0, 114, 178),
    (0, 158, 115),
    (204, 121, 167),
    (240, 228, 66),
)

CHOLEC80_SPLITS = {
    '40-40/train': tuple(range(1, 41)),
    '40-40/test': tuple(range(41, 81)),
    '32-8-40/train': tuple(range(1, 33)),
    '32-8-40/val': tuple(range(33, 41)),
    '32-8-40/test': tuple(range(41, 81)),
    '40-8-32/train': tuple(range(1, 41)),
    '40-8-32/val': tuple(range(41, 49)),
    '40-8-32/test': tuple(range(49, 81)),
    '60-20/train': tuple(range(1, 61)),
    '60-20/test': tuple(range(61, 81)),
    # short names of the most used parts
    'train-40': tuple(range(1, 41)),
    'test-40': tuple(range(41, 81)),
    'train-32': tuple(range(1, 33)),
    'test-32': tuple(range(49, 81)),
}
"""Video numbers by ``'<protocol>/<part>'``. Results of different protocols
are different experiments, so the name belongs beside every number."""


@DATASETS.register_module()
class Cholec80Dataset(BaseVideoPhaseDataset):
    """Cholec80, and every dataset in its raw layout with its phases.

    Arguments, file layout and policies are those of
    :class:`BaseVideoPhaseDataset`; named splits are ``CHOLEC80_SPLITS``.

    Source: Twinanda et al., EndoNet, IEEE Transactions on Medical Imaging
    36(1), 2017; http://camma.u-strasbg.fr/datasets.
    """

    METAINFO = dict(
        classes=CHOLEC80_PHASES,
        palette=list(CHOLEC80_PALETTE),
    )
    SPLITS = CHOLEC80_SPLITS
