"""Order and length of the phases of a sample operation."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

PREPARATION = 0
CALOT = 1
CLIPPING = 2
DISSECTION = 3
PACKAGING = 4
CLEANING = 5
RETRACTION = 6

TOOLS = ('grasper', 'hook', 'clipper', 'bag', 'irrigator')

PHASE_LOOKS = (0, 1, 2, 1, 3, 4, 0)
"""Index in ``TOOLS`` of the main tool of each phase. Two tools serve two
phases each, so one frame alone cannot tell these apart: only what came
before can."""

DURATIONS = (
    (12, 45),
    (40, 150),
    (12, 40),
    (50, 170),
    (12, 45),
    (10, 60),
    (12, 60),
)
"""Shortest and longest duration of each phase, in seconds."""

MIN_FRAMES = 180
MAX_FRAMES = 480


class PhaseRun(NamedTuple):
    """A stretch of one phase.

    Attributes:
        phase (int): Phase id.
        start (int): First second.
        stop (int): Second after the last.
    """

    phase: int
    start: int
    stop: int


class PhaseScript:
    """Phases of one operation, second by second.

    Args:
        phases (Sequence[int]): Phase ids of the runs in order.
        durations (Sequence[int]): Their lengths in seconds.

    Raises:
        ValueError: If the two differ in length, or a duration is below 1.
    """

    def __init__(
        self, phases: Sequence[int], durations: Sequence[int]
    ) -> None:
        if len(phases) != len(durations) or not phases:
            raise ValueError(
                f'`phases` has {len(phases)} and `durations` '
                f'{len(durations)} entries; expected the same number, not 0'
            )
        if min(durations) < 1:
            raise ValueError(
                f'`durations` holds {min(durations)}; expected at least 1'
            )
        stops = np.cumsum(durations).tolist()
        self.runs = [
            PhaseRun(phase, stop - duration, stop)
            for phase, duration, stop in zip(
                phases, durations, stops, strict=True
            )
        ]

    def __len__(self) -> int:
        return self.runs[-1].stop

    @property
    def labels(self) -> np.ndarray:
        """np.ndarray: int64 phase of every second ``(num_frames,)``."""
        return np.repeat(
            [run.phase for run in self.runs],
            [run.stop - run.start for run in self.runs],
        ).astype(np.int64)


def _draw_order(rng: np.random.Generator) -> list[int]:
    order = []
    with_preparation = rng.random() < 0.85
    if with_preparation:
        order.append(PREPARATION)
    order.append(CALOT)
    if with_preparation and rng.random() < 0.2:
        order += [PREPARATION, CALOT]
    order += [CLIPPING, DISSECTION]
    if rng.random() < 0.3:
        order += [CLEANING, DISSECTION]
    order.append(PACKAGING)
    if rng.random() < 0.6:
        order.append(CLEANING)
        if rng.random() < 0.3:
            order.append(PACKAGING)
    if rng.random() < 0.85:
        order.append(RETRACTION)
    return order


def draw_script(rng: np.random.Generator) -> PhaseScript:
    """Draw the phases of one operation of 180 to 480 seconds.

    The order follows a small grammar with missing phases and returns to
    earlier ones; durations are log-uniform in ``DURATIONS``. The phase is
    always a function of the tools seen since the start.

    Args:
        rng (np.random.Generator): Source of randomness.

    Returns:
        PhaseScript: The script.
    """
    while True:
        order = _draw_order(rng)
        durations = []
        for phase in order:
            low, high = DURATIONS[phase]
            log_duration = rng.uniform(math.log(low), math.log(high))
            durations.append(round(math.exp(log_duration)))
        if MIN_FRAMES <= sum(durations) <= MAX_FRAMES:
            return PhaseScript(order, durations)


def _look_histories(
    labels: np.ndarray, memory: int | None
) -> Iterator[tuple[int, ...]]:
    """Yield, for every frame, the looks seen since the memory began.

    The memory begins anew every ``memory`` frames, never if ``None``;
    repeats of a look are dropped.
    """
    history: tuple[int, ...] = ()
    for frame, label in enumerate(labels.tolist()):
        if memory is not None and frame % memory == 0:
            history = ()
        look = PHASE_LOOKS[label]
        if not history or history[-1] != look:
            history = (*history, look)
        yield history


class _LookDecoder:
    """Most frequent phase for each history of looks."""

    def __init__(
        self, scripts: Iterable[PhaseScript], memory: int | None
    ) -> None:
        self.memory = memory
        counts: dict[tuple[int, ...], Counter] = defaultdict(Counter)
        for script in scripts:
            labels = script.labels
            for history, label in zip(
                _look_histories(labels, memory), labels.tolist(), strict=True
            ):
                counts[history][label] += 1
        self._best = {
            history: max(count, key=count.__getitem__)
            for history, count in counts.items()
        }

    def accuracy(self, script: PhaseScript) -> float:
        labels = script.labels
        right = 0
        for history, label in zip(
            _look_histories(labels, self.memory), labels.tolist(), strict=True
        ):
            # a history never seen before: forget its oldest part
            while history and history not in self._best:
                history = history[1:]
            right += self._best.get(history, -1) == label
        return right / len(labels)


def label_ceilings(
    scripts: Sequence[PhaseScript],
    clip_len: int = 64,
    num_reference: int = 400,
    reference_seed: int = 0,
) -> dict[str, float]:
    """Bound the accuracy a model can reach with a given memory.

    A recogniser that sees the main tool of every frame without fail and
    remembers the tools since its memory began names the most frequent phase
    for that history. The table of phases is fitted on other scripts.

    Args:
        scripts (Sequence[PhaseScript]): The scripts to judge.
        clip_len (int): Frames of a clip. Defaults to 64.
        num_reference (int): Scripts the table is fitted on. Defaults to 400.
        reference_seed (int): Their seed. Defaults to 0.

    Returns:
        dict[str, float]: Video-wise accuracy for a memory of one ``'frame'``,
        of the current ``'clip'`` from its start, and of the ``'video'``.
    """
    sequence = np.random.SeedSequence(reference_seed, spawn_key=(2,))
    rng = np.random.default_rng(sequence)
    reference = [draw_script(rng) for _ in range(num_reference)]
    memories = dict(frame=1, clip=clip_len, video=None)
    ceilings = {}
    for name, memory in memories.items():
        decoder = _LookDecoder(reference, memory)
        scores = [decoder.accuracy(script) for script in scripts]
        ceilings[name] = float(np.mean(scores))
    return ceilings
