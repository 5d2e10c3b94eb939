"""Single frames of all videos in random order."""

from collections.abc import Iterator

import numpy as np
import torch
from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler

from mmssm.datasets.samplers.indices import ClipIndex, WindowIndex
from mmssm.datasets.samplers.video_order_sampler import derive_seed
from mmssm.registry import DATA_SAMPLERS


@DATA_SAMPLERS.register_module()
class ShuffledFrameSampler(Sampler[WindowIndex]):
    """Yield single frames of all videos, shuffled, for per-frame training.

    Used as ``sampler=`` with an ordinary ``batch_size`` and a dataset of
    ``clip_len=1``, whose clips are its frames. Every sample is independent:
    ``lane`` and ``num_lanes`` are ``-1`` and each frame has its own
    augmentation seed. Every rank gets the same number of frames; the first
    ones are repeated if they do not divide evenly.

    Args:
        dataset (BaseVideoPhaseDataset): The dataset, ``clip_len=1``.
        frames_per_epoch (int, optional): Frames of an epoch over all ranks,
            at most those the dataset has: another random choice in every
            epoch. Defaults to all.
        seed (int, optional): Random seed, equal on all ranks. By default one
            is drawn and sent to all ranks.

    Raises:
        ValueError: If ``clip_len`` is not 1 or ``frames_per_epoch`` is out
            of range.
    """

    def __init__(
        self,
        dataset,
        frames_per_epoch: int | None = None,
        seed: int | None = None,
    ) -> None:
        clip_len = getattr(dataset, 'clip_len', None)
        if clip_len != 1:
            raise ValueError(
                f'`dataset` has clip_len {clip_len}; expected 1, since '
                'ShuffledFrameSampler yields single frames. Set clip_len=1 '
                'in the dataset config'
            )
        counts = [dataset.num_frames(video) for video in range(len(dataset))]
        # first global frame number of every video, and the total at the end
        self._offsets = np.concatenate([[0], np.cumsum(counts)])
        total = int(self._offsets[-1])
        if frames_per_epoch is None:
            frames_per_epoch = total
        if not 1 <= frames_per_epoch <= total:
            raise ValueError(
                f'`frames_per_epoch` is {frames_per_epoch}; expected 1 to '
                f'{total}, the number of frames of the dataset'
            )
        self.dataset = dataset
        self.frames_per_epoch = frames_per_epoch
        self.seed = sync_random_seed() if seed is None else int(seed)
        self.epoch = 0
        self.rank, self.world_size = get_dist_info()

    def __iter__(self) -> Iterator[WindowIndex]:
        generator = torch.Generator()
        generator.manual_seed(derive_seed(self.seed, self.epoch))
        order = torch.randperm(int(self._offsets[-1]), generator=generator)
        order = order[: self.frames_per_epoch].numpy()
        # np.resize repeats the first frames to the same number on each rank
        order = np.resize(order, len(self) * self.world_size)
        for frame in order[self.rank :: self.world_size].tolist():
            video = int(self._offsets.searchsorted(frame, side='right')) - 1
            clip = ClipIndex(
                video,
                frame - int(self._offsets[video]),
                derive_seed(self.seed, self.epoch, frame),
            )
            yield WindowIndex(lane=-1, num_lanes=-1, clips=(clip,))

    def __len__(self) -> int:
        return -(-self.frames_per_epoch // self.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; mmengine's ``DistSamplerSeedHook`` calls it."""
        self.epoch = epoch
