"""Datasets of videos: layout, windows, errors, dataloaders."""

import shutil

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from mmssm.datasets import (
    CHOLEC80_PHASES,
    CHOLEC80_SPLITS,
    BaseVideoPhaseDataset,
    Cholec80Dataset,
    ClipIndex,
    WindowIndex,
)

AUGMENT = [
    dict(type='mmssm.LoadFrames'),
    dict(type='mmssm.VideoFlip'),
    dict(type='mmssm.ClipColorJitter', brightness=0.3, contrast=0.3),
]


def write_video(
    root, name='video01', num_frames=10, num_rows=None, first=0, suffix='.png'
):
    """Write frames whose grey level is their number."""
    folder = root / 'frames' / name
    folder.mkdir(parents=True)
    for i in range(num_frames):
        image = np.full((8, 12, 3), i, dtype=np.uint8)
        cv2.imwrite(str(folder / f'{first + i}{suffix}'), image)
    (root / 'phase_annotations').mkdir(exist_ok=True)
    count = num_frames if num_rows is None else num_rows
    rows = [f'{i}\t{i % 7}\n' for i in range(count)]
    path = root / 'phase_annotations' / f'{name}-phase.txt'
    path.write_text(''.join(rows))
    return root


def build(root, split=(1,), clip_len=4, annotation_fps=1, **kwargs):
    return Cholec80Dataset(
        root, split, clip_len, annotation_fps=annotation_fps, **kwargs
    )


def window(*clips, lane=0, num_lanes=1):
    return WindowIndex(
        lane, num_lanes, tuple(ClipIndex(v, c, 11) for v, c in clips)
    )


def test_window_over_two_videos(tmp_path):
    write_video(tmp_path, 'video01', 10)
    write_video(tmp_path, 'video02', 3)
    dataset = build(tmp_path, (1, 2))
    item = dataset[window((0, 1), (0, 2), (1, 0), (-1, 0))]
    inputs, sample = item['inputs'], item['data_samples']
    assert inputs.shape == (4, 4, 3, 8, 12)
    assert inputs.dtype == torch.uint8
    assert inputs[:, :, 0, 0, 0].tolist() == [
        [4, 5, 6, 7],
        [8, 9, 9, 9],
        [0, 1, 2, 2],
        [0, 0, 0, 0],
    ]
    assert sample.gt_phase.tolist() == [
        [4, 5, 6, 0],
        [1, 2, -1, -1],
        [0, 1, 2, -1],
        [-1, -1, -1, -1],
    ]
    assert sample.gt_phase.dtype == torch.int64
    assert sample.video_id == ['video01', 'video01', 'video02', '']
    assert sample.frame_idx == [4, 8, 0, 0]
    assert sample.num_frames == [4, 2, 3, 0]
    assert sample.new_video == [False, False, True, False]
    assert sample.end_of_video == [False, True, True, False]
    assert (sample.lane, sample.num_lanes) == (0, 1)


def test_all_empty_window_has_the_shape_of_the_others(tmp_path):
    dataset = build(write_video(tmp_path))
    empty = dataset[window((-1, 0), (-1, 0))]
    assert empty['inputs'].shape == (2, 4, 3, 8, 12)
    assert empty['inputs'].max() == 0
    assert empty['data_samples'].num_frames == [0, 0]


@pytest.mark.parametrize('clip_len', [1, 3, 5, 10, 11, 64])
def test_clip_lengths(tmp_path, clip_len):
    dataset = build(write_video(tmp_path), clip_len=clip_len)
    sample = dataset[0]['data_samples']
    assert len(sample.num_frames) == dataset.num_clips(0)
    assert sum(sample.num_frames) == dataset.num_frames(0) == 10
    labels = sample.gt_phase[sample.gt_phase >= 0]
    assert labels.tolist() == [i % 7 for i in range(10)]


def test_independent_window_starts_anew(tmp_path):
    dataset = build(write_video(tmp_path), clip_len=1)
    sample = dataset[window((0, 6), lane=-1, num_lanes=-1)]['data_samples']
    assert sample.new_video == [True]
    assert sample.frame_idx == [6]


def test_index_errors(tmp_path):
    dataset = build(write_video(tmp_path))
    assert dataset[-1]['data_samples'].video_id == ['video01'] * 3
    with pytest.raises(IndexError, match='1 videos'):
        dataset[1]
    with pytest.raises(IndexError, match='3 clips of 4'):
        dataset[window((0, 3))]
    with pytest.raises(TypeError, match='WindowIndex'):
        dataset['video01']


def test_metainfo(tmp_path):
    dataset = build(write_video(tmp_path), metainfo=dict(center='A'))
    meta = dataset.metainfo
    assert meta['classes'] == CHOLEC80_PHASES
    assert len(meta['palette']) == 7
    assert (meta['fps'], meta['dataset_type']) == (1, 'Cholec80Dataset')
    assert (meta['split'], meta['center']) == ([1], 'A')
    meta['classes'] = ()
    assert dataset.metainfo['classes'] == CHOLEC80_PHASES


def test_base_dataset_with_classes_from_config(tmp_path):
    write_video(tmp_path)
    names = [f'phase {i}' for i in range(7)]
    dataset = BaseVideoPhaseDataset(
        tmp_path,
        ['video01'],
        4,
        annotation_fps=1,
        metainfo=dict(classes=names),
    )
    assert dataset.metainfo['classes'] == tuple(names)
    assert len(dataset.metainfo['palette']) == 7
    with pytest.raises(ValueError, match='class names'):
        BaseVideoPhaseDataset(tmp_path, ['video01'], 4, annotation_fps=1)


def test_frames_are_sorted_by_number(tmp_path):
    # written without leading zeros: 10 must not come before 2
    dataset = build(write_video(tmp_path, num_frames=12, first=1))
    names = dataset.videos[0].frame_names
    assert names == [f'{i}.png' for i in range(1, 13)]


@pytest.mark.parametrize(('frames', 'rows'), [(10, 9), (9, 10), (12, 10)])
def test_small_count_difference_is_cut_and_logged(
    tmp_path, monkeypatch, frames, rows
):
    logged = []
    monkeypatch.setattr(
        'mmssm.datasets.base_surgical_dataset.print_log',
        lambda message, **_: logged.append(message),
    )
    write_video(tmp_path, num_frames=frames, num_rows=rows)
    dataset = build(tmp_path)
    assert dataset.num_frames(0) == min(frames, rows)
    assert len(dataset.videos[0].phases) == min(frames, rows)
    assert f'video01 {frames} frames / {rows} labels' in logged[0]


def test_missing_first_frame_can_be_seen(tmp_path, monkeypatch):
    logged = []
    monkeypatch.setattr(
        'mmssm.datasets.base_surgical_dataset.print_log',
        lambda message, **_: logged.append(message),
    )
    write_video(tmp_path)
    (tmp_path / 'frames' / 'video01' / '0.png').unlink()
    build(tmp_path)
    assert '9 frames / 10 labels (first image 1.png)' in logged[0]
    assert 'all labels are shifted' in logged[0]


def test_count_difference_errors(tmp_path):
    write_video(tmp_path, num_frames=10, num_rows=13)
    with pytest.raises(ValueError, match='10 frames .* 13 labels') as error:
        build(tmp_path)
    assert 'video01-phase.txt' in str(error.value)
    assert build(tmp_path, max_count_difference=3).num_frames(0) == 10
    with pytest.raises(ValueError, match='annotation_fps'):
        build(tmp_path, annotation_fps=25)
    shutil.rmtree(tmp_path / 'frames')
    shutil.rmtree(tmp_path / 'phase_annotations')
    write_video(tmp_path, num_frames=10, num_rows=11)
    with pytest.raises(ValueError, match='difference of 0'):
        build(tmp_path, frame_count_policy='error')


def test_missing_and_empty_folders(tmp_path):
    write_video(tmp_path)
    with pytest.raises(FileNotFoundError, match='video02'):
        build(tmp_path, (1, 2))
    (tmp_path / 'frames' / 'video02').mkdir()
    with pytest.raises(ValueError, match='holds no images'):
        build(tmp_path, (1, 2))


def test_missing_frame_is_found(tmp_path):
    write_video(tmp_path)
    (tmp_path / 'frames' / 'video01' / '5.png').unlink()
    with pytest.raises(ValueError, match='6.png follows 4.png'):
        build(tmp_path)


def test_two_kinds_of_image(tmp_path):
    write_video(tmp_path)
    folder = tmp_path / 'frames' / 'video01'
    shutil.copy(folder / '0.png', folder / '0.jpg')
    with pytest.raises(ValueError, match='two kinds'):
        build(tmp_path)


def test_unreadable_frame_is_named(tmp_path):
    write_video(tmp_path)
    dataset = build(tmp_path)
    path = tmp_path / 'frames' / 'video01' / '2.png'
    path.write_bytes(b'')
    with pytest.raises(ValueError, match='2.png'):
        dataset[0]
    path.unlink()
    with pytest.raises(FileNotFoundError, match='2.png'):
        dataset[0]
    cv2.imwrite(str(path), np.zeros((9, 9, 3), np.uint8))
    with pytest.raises(ValueError, match='9x9 pixels'):
        dataset[0]


def test_videos_without_labels(tmp_path):
    write_video(tmp_path)
    shutil.rmtree(tmp_path / 'phase_annotations')
    with pytest.raises(ValueError, match='test_mode'):
        build(tmp_path, phase_dir=None)
    dataset = build(tmp_path, phase_dir=None, test_mode=True)
    assert dataset[0]['data_samples'].gt_phase.max() == -1


@pytest.mark.parametrize(
    ('arguments', 'match'),
    [
        (dict(clip_len=0), 'clip_len'),
        (dict(fps=2, annotation_fps=25), 'annotation_fps'),
        (dict(frame_count_policy='pad'), 'frame_count_policy'),
        (dict(split='train-41'), '40-40/train'),
        (dict(split=[1, 1]), 'more than once'),
        (dict(split=[]), 'empty'),
        (dict(split=1), '`split` is 1; expected the name'),
        (dict(split=None), '`split` is None; expected the name'),
        (dict(split=[1.5]), '`split` lists 1.5; expected numbers or names'),
        (dict(pipeline=['LoadFrames']), 'pipeline'),
    ],
)
def test_argument_errors(tmp_path, arguments, match):
    with pytest.raises((ValueError, TypeError), match=match):
        build(write_video(tmp_path), **arguments)


def test_official_splits():
    for protocol, sizes in {
        '40-40': (40, 40),
        '32-8-40': (32, 8, 40),
        '40-8-32': (40, 8, 32),
        '60-20': (60, 20),
    }.items():
        names = [n for n in CHOLEC80_SPLITS if n.startswith(protocol + '/')]
        videos = [v for name in names for v in CHOLEC80_SPLITS[name]]
        assert sorted(videos) == list(range(1, 81))
        assert tuple(len(CHOLEC80_SPLITS[n]) for n in names) == sizes
    assert CHOLEC80_SPLITS['test-40'] == CHOLEC80_SPLITS['40-40/test']


def test_lazy_init(tmp_path):
    dataset = build(tmp_path, lazy_init=True)
    assert len(dataset) == 1
    write_video(tmp_path)
    assert dataset.num_clips(0) == 3


def dataloader_config(root, num_workers, **dataset):
    return dict(
        dataset=dict(
            type='Cholec80Dataset',
            data_root=str(root),
            split=[1, 2, 3, 4],
            clip_len=8,
            pipeline=AUGMENT,
            **dataset,
        ),
        sampler=dict(type='VideoOrderSampler', shuffle=True),
        batch_sampler=dict(type='LaneBatchSampler', clips_per_window=2),
        batch_size=2,
        num_workers=num_workers,
    )


@pytest.fixture
def mmssm_scope():
    with DefaultScope.overwrite_default_scope('mmssm'):
        yield


def test_runner_dataloader_is_the_same_for_any_workers(tiny_root, mmssm_scope):
    batches = {}
    for workers in (0, 2):
        loader = Runner.build_dataloader(
            dataloader_config(tiny_root, workers), seed=3
        )
        batches[workers] = list(loader)
        assert len(batches[workers]) == len(loader)
    for alone, shared in zip(batches[0], batches[2], strict=True):
        for lane in range(2):
            assert torch.equal(alone['inputs'][lane], shared['inputs'][lane])
            a, b = alone['data_samples'][lane], shared['data_samples'][lane]
            assert a.to_dict().keys() == b.to_dict().keys()
            assert torch.equal(a.gt_phase, b.gt_phase)
            assert a.video_id == b.video_id
            assert a.lane == lane
    frames = sum(
        sum(s.num_frames) for b in batches[0] for s in b['data_samples']
    )
    assert frames == sum(map(loader.dataset.num_frames, range(4)))


def test_epochs_differ_by_set_epoch(tiny_root, mmssm_scope):
    loader = Runner.build_dataloader(dataloader_config(tiny_root, 0), seed=3)

    def epoch(number):
        # as mmengine's DistSamplerSeedHook finds it
        assert not hasattr(loader.sampler, 'set_epoch')
        loader.batch_sampler.sampler.set_epoch(number)
        return torch.cat([b['inputs'][0] for b in loader])

    first = epoch(0)
    assert torch.equal(epoch(0), first)
    assert not torch.equal(epoch(1), first)


def test_runner_builds_shuffled_frames(tiny_root, mmssm_scope):
    config = dataloader_config(tiny_root, 0)
    config['dataset']['clip_len'] = 1
    config['sampler'] = dict(type='ShuffledFrameSampler')
    config['batch_size'] = 16
    del config['batch_sampler']
    loader = Runner.build_dataloader(config, seed=0)
    assert hasattr(loader.sampler, 'set_epoch')
    batch = next(iter(loader))
    assert len(batch['inputs']) == 16
    assert batch['inputs'][0].shape == (1, 1, 3, 32, 32)
    videos = {sample.video_id[0] for sample in batch['data_samples']}
    assert len(videos) > 1
