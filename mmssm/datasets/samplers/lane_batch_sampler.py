"""Deal whole videos to lanes and cut the lanes in windows of clips."""

from collections.abc import Iterator

from mmengine.dist import get_dist_info
from mmengine.logging import print_log
from torch.utils.data import Sampler

from mmssm.datasets.samplers.indices import (
    EMPTY_CLIP,
    ClipIndex,
    WindowIndex,
)
from mmssm.datasets.samplers.video_order_sampler import VideoOrderSampler
from mmssm.registry import DATA_SAMPLERS


@DATA_SAMPLERS.register_module()
class LaneBatchSampler(Sampler[list[WindowIndex]]):
    """Batch one window of each lane, a lane being a stream of whole videos.

    All lanes of all ranks get about the same number of clips: the epoch's
    videos, longest first, each go to the lane with the least clips so far.
    Inside a lane the videos follow the sampler's order. Every lane is then
    filled up with empty clips to the same number of windows, which depends
    on the lengths of the videos only: it is the same in every epoch and on
    every rank. Each clip of each video is visited exactly once per epoch,
    in order, so that a model can carry its state from window to window.

    Used as ``batch_sampler=dict(type='LaneBatchSampler',
    clips_per_window=4)`` beside ``sampler=dict(type='VideoOrderSampler')``
    and ``batch_size``; mmengine's ``Runner`` passes the last two on.

    Args:
        sampler (VideoOrderSampler): Order of the videos. Its dataset has
            ``num_clips(video)``.
        batch_size (int): Lanes per rank.
        clips_per_window (int): Clips of a lane in one iteration: the
            truncation window of backpropagation through time. Defaults to 1.

    Raises:
        TypeError: If ``sampler`` is no :class:`VideoOrderSampler`.
        ValueError: If a number is below 1 or the dataset has no clips.
    """

    def __init__(
        self,
        sampler: VideoOrderSampler,
        batch_size: int,
        clips_per_window: int = 1,
    ) -> None:
        if not isinstance(sampler, VideoOrderSampler):
            raise TypeError(
                f'`sampler` is a {type(sampler).__name__}; expected a '
                'VideoOrderSampler. Set sampler=dict(type='
                "'VideoOrderSampler', shuffle=...) in the dataloader config"
            )
        for name, value in (
            ('batch_size', batch_size),
            ('clips_per_window', clips_per_window),
        ):
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f'`{name}` is {value!r}; expected an integer >= 1'
                )
        if not hasattr(sampler.dataset, 'num_clips'):
            raise TypeError(
                f'`sampler.dataset` is a {type(sampler.dataset).__name__} '
                'without `num_clips(video)`; expected a phase dataset such '
                'as Cholec80Dataset'
            )
        self.sampler = sampler
        self.batch_size = batch_size
        self.clips_per_window = clips_per_window
        self.rank, self.world_size = get_dist_info()
        self._num_clips = [
            sampler.dataset.num_clips(video)
            for video in range(len(sampler.dataset))
        ]
        if sum(self._num_clips) == 0:
            raise ValueError('the dataset of `sampler` holds no clips')
        num_lanes = self.world_size * batch_size
        if num_lanes > len(self._num_clips):
            print_log(
                f'{num_lanes} lanes ({self.world_size} processes x '
                f'batch_size {batch_size}) but only {len(self._num_clips)} '
                'videos: some lanes stay empty. A smaller batch_size wastes '
                'less.',
                logger='current',
                level=30,
            )
        self._num_windows = self._count_windows(
            self._deal(range(len(self._num_clips)))
        )

    def _deal(self, order: list[int] | range) -> list[list[int]]:
        """Split the videos of ``order`` into one list per lane, all ranks."""
        num_lanes = self.world_size * self.batch_size
        lanes: list[list[int]] = [[] for _ in range(num_lanes)]
        loads = [0] * num_lanes
        position = {video: i for i, video in enumerate(order)}
        # sorted() is stable: equally long videos stay in the epoch's order
        for video in sorted(order, key=lambda v: -self._num_clips[v]):
            lane = loads.index(min(loads))
            lanes[lane].append(video)
            loads[lane] += self._num_clips[video]
        return [sorted(lane, key=position.__getitem__) for lane in lanes]

    def _count_windows(self, lanes: list[list[int]]) -> int:
        longest = max(
            sum(self._num_clips[video] for video in lane) for lane in lanes
        )
        return -(-longest // self.clips_per_window)

    def __iter__(self) -> Iterator[list[WindowIndex]]:
        lanes = self._deal(list(self.sampler))
        first = self.rank * self.batch_size
        size = self.clips_per_window
        streams = []
        for lane in lanes[first : first + self.batch_size]:
            clips = [
                ClipIndex(video, clip, self.sampler.video_seed(video))
                for video in lane
                for clip in range(self._num_clips[video])
            ]
            missing = self._num_windows * size - len(clips)
            streams.append(clips + [EMPTY_CLIP] * missing)
        for window in range(self._num_windows):
            start = window * size
            yield [
                WindowIndex(
                    lane, self.batch_size, tuple(clips[start : start + size])
                )
                for lane, clips in enumerate(streams)
            ]

    def __len__(self) -> int:
        return self._num_windows
