"""M2CAI16 and AutoLaparo in their raw layouts."""

import cv2
import numpy as np
import pytest

from mmssm.datasets import AutoLaparoDataset, M2CAI16Dataset
from mmssm.datasets.annotations import read_phase_file

CLASSES = ('a', 'b', 'c')


def write_frames(folder, count):
    folder.mkdir(parents=True)
    for i in range(count):
        cv2.imwrite(str(folder / f'{i:08d}.jpg'), np.zeros((8, 8, 3), 'u1'))


def write_autolaparo(root, phases, first_frame=1):
    write_frames(root / 'frames/11', len(phases))
    (root / 'labels').mkdir()
    rows = [f'{i + first_frame}\t{phase}' for i, phase in enumerate(phases)]
    text = '\n'.join(['Frame\tPhase', *rows])
    (root / 'labels/label_11.txt').write_text(text)


def test_autolaparo_counts_from_one(tmp_path):
    write_autolaparo(tmp_path, [1, 1, 2, 7, 7])
    dataset = AutoLaparoDataset(tmp_path, [11], clip_len=4)
    assert dataset.videos[0].phases.tolist() == [0, 0, 1, 6, 6]
    assert dataset[0]['data_samples'].gt_phase.tolist() == [
        [0, 0, 1, 6],
        [6, -1, -1, -1],
    ]


def test_autolaparo_copies_that_count_from_zero(tmp_path):
    write_autolaparo(tmp_path, [0, 1, 6])
    with pytest.raises(ValueError, match=r'phase 0; .*`first_phase` = 0'):
        AutoLaparoDataset(tmp_path, [11], clip_len=4)
    dataset = AutoLaparoDataset(tmp_path, [11], clip_len=4, first_phase=0)
    assert dataset.videos[0].phases.tolist() == [0, 1, 6]


def test_seven_in_a_file_that_counts_from_zero(tmp_path):
    write_autolaparo(tmp_path, [1, 7])
    with pytest.raises(ValueError, match=r'phase 7; .*`first_phase` = 1'):
        AutoLaparoDataset(tmp_path, [11], clip_len=4, first_phase=0)


def test_autolaparo_frames_that_count_from_zero(tmp_path):
    write_autolaparo(tmp_path, [1, 2], first_frame=0)
    with pytest.raises(ValueError, match='`first_frame` = 0'):
        AutoLaparoDataset(tmp_path, [11], clip_len=4)


def test_first_frame_keeps_the_sampling(tmp_path):
    path = tmp_path / 'x.txt'
    path.write_text('\n'.join(f'{i + 1}\t{i // 5}' for i in range(15)))
    phases = read_phase_file(path, CLASSES, stride=5, first_frame=1)
    assert phases.tolist() == [0, 1, 2]


def test_m2cai16(tmp_path):
    write_frames(tmp_path / 'frames/workflow_video_03', 3)
    (tmp_path / 'phase_annotations').mkdir()
    names = ['TrocarPlacement'] * 25 + ['Preparation'] * 50
    rows = [f'{i}\t{name}' for i, name in enumerate(names)]
    text = '\n'.join(['Frame\tPhase', *rows])
    (tmp_path / 'phase_annotations/workflow_video_03.txt').write_text(text)
    dataset = M2CAI16Dataset(tmp_path, ['workflow_video_03'], clip_len=2)
    assert dataset.videos[0].phases.tolist() == [0, 1, 1]
    assert len(dataset.metainfo['classes']) == 8


@pytest.mark.parametrize(
    ('splits', 'sizes'),
    [
        (M2CAI16Dataset.SPLITS, {'train': 27, 'test': 14}),
        (AutoLaparoDataset.SPLITS, {'train': 10, 'val': 4, 'test': 7}),
    ],
)
def test_official_splits(splits, sizes):
    protocol = '-'.join(str(size) for size in sizes.values())
    parts = {part: splits[f'{protocol}/{part}'] for part in sizes}
    assert {part: len(videos) for part, videos in parts.items()} == sizes
    videos = [video for part in parts.values() for video in part]
    assert len(set(videos)) == len(videos)
