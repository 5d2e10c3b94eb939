"""The order in which an epoch goes through the videos."""

from collections.abc import Iterator, Sized

import numpy as np
import torch
from mmengine.dist import sync_random_seed
from torch.utils.data import Sampler

from mmssm.registry import DATA_SAMPLERS


def derive_seed(*entropy: int) -> int:
    """Mix non-negative integers into one seed.

    Args:
        entropy (int): For example the run's seed, the epoch and the video.

    Returns:
        int: A seed in 0..2**63-1, equal on every machine.
    """
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


@DATA_SAMPLERS.register_module()
class VideoOrderSampler(Sampler[int]):
    """Yield every video of the dataset once, in this epoch's order.

    The order is that of the whole dataset and the same on every rank;
    :class:`LaneBatchSampler` deals the videos to ranks and lanes. Used alone
    (without ``batch_sampler``) it makes the dataset return whole videos.

    Args:
        dataset (Sized): The dataset of videos.
        shuffle (bool): Whether to shuffle the videos anew in every epoch.
            Defaults to True.
        seed (int, optional): Random seed, equal on all ranks. By default one
            is drawn and sent to all ranks.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else int(seed)
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        num_videos = len(self.dataset)
        if not self.shuffle:
            return iter(range(num_videos))
        generator = torch.Generator()
        generator.manual_seed(derive_seed(self.seed, self.epoch))
        return iter(torch.randperm(num_videos, generator=generator).tolist())

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; mmengine's ``DistSamplerSeedHook`` calls it."""
        self.epoch = epoch

    def video_seed(self, video: int) -> int:
        """Return the augmentation seed of a video in this epoch.

        Args:
            video (int): Index of the video in the dataset.

        Returns:
            int: A seed in 0..2**63-1.
        """
        return derive_seed(self.seed, self.epoch, video)
