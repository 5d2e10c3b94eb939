"""Samplers: every clip once, in order, the same amount on every rank."""

import numpy as np
import pytest

from mmssm.datasets.samplers import (
    EMPTY_CLIP,
    LaneBatchSampler,
    ShuffledFrameSampler,
    VideoOrderSampler,
    lane_batch_sampler,
    shuffled_frame_sampler,
)

LENGTHS = [37, 20, 55, 8, 16, 1, 33, 20]


class Videos:
    """As much of a dataset as samplers look at."""

    def __init__(self, lengths, clip_len=8):
        self.lengths = lengths
        self.clip_len = clip_len

    def __len__(self):
        return len(self.lengths)

    def num_frames(self, video):
        return self.lengths[video]

    def num_clips(self, video):
        return -(-self.lengths[video] // self.clip_len)


@pytest.fixture
def set_rank(monkeypatch):
    """Pretend to be one process of several."""

    def set_rank(rank, world_size):
        for module in (lane_batch_sampler, shuffled_frame_sampler):
            monkeypatch.setattr(
                module, 'get_dist_info', lambda: (rank, world_size)
            )

    return set_rank


def lanes_of(sampler):
    """Return each lane's clips of one epoch, and check the windows."""
    lanes = [[] for _ in range(sampler.batch_size)]
    batches = list(sampler)
    assert len(batches) == len(sampler)
    for batch in batches:
        assert [w.lane for w in batch] == list(range(sampler.batch_size))
        for window in batch:
            assert window.num_lanes == sampler.batch_size
            assert len(window.clips) == sampler.clips_per_window
            lanes[window.lane] += window.clips
    return lanes


@pytest.mark.parametrize('world_size', [1, 2, 3])
@pytest.mark.parametrize('batch_size', [1, 2, 5])
@pytest.mark.parametrize('clips_per_window', [1, 3])
@pytest.mark.parametrize('shuffle', [True, False])
def test_each_clip_once_in_order(
    set_rank, world_size, batch_size, clips_per_window, shuffle
):
    dataset = Videos(LENGTHS)
    expected = {
        (v, c)
        for v in range(len(LENGTHS))
        for c in range(dataset.num_clips(v))
    }
    windows = set()
    for epoch in range(3):
        seen = []
        for rank in range(world_size):
            set_rank(rank, world_size)
            order = VideoOrderSampler(dataset, shuffle=shuffle, seed=7)
            order.set_epoch(epoch)
            sampler = LaneBatchSampler(order, batch_size, clips_per_window)
            windows.add(len(sampler))
            for lane in lanes_of(sampler):
                real = [clip for clip in lane if clip != EMPTY_CLIP]
                # empty clips only at the end
                assert lane[: len(real)] == real
                for before, after in zip(real, real[1:], strict=False):
                    if after.video == before.video:
                        assert after.clip == before.clip + 1
                    else:
                        last = dataset.num_clips(before.video) - 1
                        assert (before.clip, after.clip) == (last, 0)
                seen += [(clip.video, clip.clip) for clip in real]
        assert len(seen) == len(expected)
        assert set(seen) == expected
    # the same on every rank and in every epoch
    assert len(windows) == 1


def test_lanes_are_balanced():
    dataset = Videos(LENGTHS)
    sampler = LaneBatchSampler(VideoOrderSampler(dataset, seed=0), 2)
    total = sum(dataset.num_clips(v) for v in range(len(LENGTHS)))
    assert len(sampler) == -(-total // 2)


def test_unshuffled_keeps_dataset_order():
    order = VideoOrderSampler(Videos(LENGTHS), shuffle=False, seed=0)
    for lane in lanes_of(LaneBatchSampler(order, 3)):
        videos = [clip.video for clip in lane if clip != EMPTY_CLIP]
        assert videos == sorted(videos)


def test_shuffling_depends_on_seed_and_epoch():
    dataset = Videos(LENGTHS)

    def order(seed, epoch):
        sampler = VideoOrderSampler(dataset, seed=seed)
        sampler.set_epoch(epoch)
        assert sorted(sampler) == list(range(len(LENGTHS)))
        return list(sampler)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_video_seed_is_shared_by_the_clips_of_a_video():
    sampler = LaneBatchSampler(VideoOrderSampler(Videos(LENGTHS), seed=3), 2)

    def seeds():
        found = {}
        for lane in lanes_of(sampler):
            for clip in lane:
                if clip != EMPTY_CLIP:
                    found.setdefault(clip.video, set()).add(clip.seed)
        assert all(len(s) == 1 for s in found.values())
        values = [found[v].pop() for v in range(len(LENGTHS))]
        assert len(set(values)) == len(LENGTHS)
        assert all(0 <= value < 2**63 for value in values)
        return values

    first = seeds()
    assert seeds() == first
    sampler.sampler.set_epoch(1)
    assert not set(seeds()) & set(first)


def test_more_lanes_than_videos():
    sampler = LaneBatchSampler(VideoOrderSampler(Videos([9, 3]), seed=0), 4)
    lanes = lanes_of(sampler)
    assert len(sampler) == 2
    assert sum(set(lane) == {EMPTY_CLIP} for lane in lanes) == 2


@pytest.mark.parametrize('field', ['batch_size', 'clips_per_window'])
def test_lane_sampler_refuses_zero(field):
    order = VideoOrderSampler(Videos(LENGTHS), seed=0)
    arguments = dict(batch_size=2, clips_per_window=2)
    arguments[field] = 0
    with pytest.raises(ValueError, match=field):
        LaneBatchSampler(order, **arguments)


def test_lane_sampler_names_the_sampler_it_needs():
    with pytest.raises(TypeError, match='VideoOrderSampler'):
        LaneBatchSampler([0, 1], 2)
    with pytest.raises(TypeError, match='num_clips'):
        LaneBatchSampler(VideoOrderSampler([1, 2], seed=0), 2)


@pytest.mark.parametrize('world_size', [1, 3])
def test_shuffled_frames(set_rank, world_size):
    dataset = Videos([5, 1, 7], clip_len=1)
    epochs = []
    for epoch in range(2):
        seen, sizes = [], set()
        for rank in range(world_size):
            set_rank(rank, world_size)
            sampler = ShuffledFrameSampler(dataset, seed=5)
            sampler.set_epoch(epoch)
            indices = list(sampler)
            assert len(indices) == len(sampler)
            sizes.add(len(indices))
            seen += [index.clips[0] for index in indices]
            assert all(index.num_lanes == -1 for index in indices)
        assert len(sizes) == 1
        frames = {(clip.video, clip.clip) for clip in seen}
        assert frames == {
            (v, f) for v, length in enumerate((5, 1, 7)) for f in range(length)
        }
        # 13 frames on 3 ranks: two frames come twice
        assert len(seen) == -(-13 // world_size) * world_size
        epochs.append(seen)
    assert [c[:2] for c in epochs[0]] != [c[:2] for c in epochs[1]]
    assert len({clip.seed for clip in epochs[0]}) == 13


def test_shuffled_frames_limit():
    dataset = Videos([50, 50], clip_len=1)
    sampler = ShuffledFrameSampler(dataset, frames_per_epoch=10, seed=0)
    first = {index.clips[0][:2] for index in sampler}
    sampler.set_epoch(1)
    second = {index.clips[0][:2] for index in sampler}
    assert len(first) == len(second) == len(sampler) == 10
    assert first != second
    with pytest.raises(ValueError, match='frames_per_epoch'):
        ShuffledFrameSampler(dataset, frames_per_epoch=101, seed=0)


def test_shuffled_frames_need_clips_of_one_frame():
    with pytest.raises(ValueError, match='clip_len=1'):
        ShuffledFrameSampler(Videos([5], clip_len=8), seed=0)


def test_videos_are_in_random_positions():
    # a biased order would start too many epochs with the same video
    sampler = VideoOrderSampler(Videos([1] * 4), seed=0)
    firsts = []
    for epoch in range(200):
        sampler.set_epoch(epoch)
        firsts.append(next(iter(sampler)))
    assert np.bincount(firsts, minlength=4).min() > 25
