"""What samplers hand to phase datasets: clips and windows of clips."""

from typing import NamedTuple


class ClipIndex(NamedTuple):
    """One clip of one video.

    Attributes:
        video (int): Index of the video in the dataset, ``-1`` for an empty
            clip that only fills a window.
        clip (int): Number of the clip in its video, from 0.
        seed (int): Random seed of the augmentation, 0..2**63-1. All clips of
            a video share it within an epoch, so what is drawn per video stays
            the same over its clips and does not depend on the workers.
    """

    video: int
    clip: int
    seed: int


class WindowIndex(NamedTuple):
    """Consecutive clips of one lane: what one sample of a batch holds.

    Attributes:
        lane (int): Position in the batch, ``-1`` if the sample belongs to no
            lane.
        num_lanes (int): Lanes in the batch, ``-1`` if every sample is
            independent of all others.
        clips (tuple[ClipIndex, ...]): The clips in order. They may hold the
            end of one video and the start of the next.
    """

    lane: int
    num_lanes: int
    clips: tuple[ClipIndex, ...]


EMPTY_CLIP = ClipIndex(video=-1, clip=0, seed=0)
"""Fills a lane that ran out of videos."""
