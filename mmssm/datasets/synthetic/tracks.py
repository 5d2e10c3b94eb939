"""Smooth random curves over time that drive the drawing."""

import numpy as np


def smooth_track(
    rng: np.random.Generator,
    times: np.ndarray,
    spacing: float,
    amplitude: float = 1.0,
) -> np.ndarray:
    """Draw a smooth random curve with mean 0.

    The curve depends on the generator and on the duration, not on the rate
    at which ``times`` samples it.

    Args:
        rng (np.random.Generator): Source of randomness.
        times (np.ndarray): Sampling times in seconds, ascending from 0.
        spacing (float): Seconds between independent values.
        amplitude (float): Standard deviation of these. Defaults to 1.

    Returns:
        np.ndarray: float64 values ``(len(times),)``.
    """
    num_knots = int(np.ceil(times[-1] / spacing)) + 3
    knots = rng.normal(0.0, amplitude, num_knots)
    position = times / spacing
    left = position.astype(int)
    part = position - left
    part = part * part * (3 - 2 * part)
    return knots[left] * (1 - part) + knots[left + 1] * part


def episodes(
    rng: np.random.Generator,
    times: np.ndarray,
    gap: float,
    length: float,
    ramp: float = 2.0,
) -> np.ndarray:
    """Draw a curve that is 0 most of the time and rises now and then.

    Args:
        rng (np.random.Generator): Source of randomness.
        times (np.ndarray): Sampling times in seconds.
        gap (float): Mean seconds between two episodes.
        length (float): Mean seconds of an episode.
        ramp (float): Seconds of rising and of falling. Defaults to 2.

    Returns:
        np.ndarray: float64 values 0..1 ``(len(times),)``.
    """
    level = np.zeros(len(times))
    start = rng.exponential(gap)
    while start < times[-1]:
        stop = start + 1 + rng.exponential(length)
        height = rng.uniform(0.4, 1.0)
        rise = np.minimum((times - start) / ramp, (stop + ramp - times) / ramp)
        np.maximum(level, height * np.clip(rise, 0, 1), out=level)
        start = stop + ramp + rng.exponential(gap)
    return level


def on_off_intervals(
    rng: np.random.Generator,
    start: int,
    stop: int,
    mean_on: float,
    mean_off: float,
    min_on: int = 5,
) -> list[tuple[int, int]]:
    """Draw when a tool is in view, beginning with the first second.

    Args:
        rng (np.random.Generator): Source of randomness.
        start (int): First second.
        stop (int): Second after the last.
        mean_on (float): Mean seconds in view.
        mean_off (float): Mean seconds out of view.
        min_on (int): Least seconds in view at a time. Defaults to 5.

    Returns:
        list[tuple[int, int]]: First second in view and first one out of it.
    """
    intervals = []
    begin = start
    while begin < stop:
        on = min_on + round(rng.exponential(max(mean_on - min_on, 1)))
        end = min(begin + on, stop)
        intervals.append((begin, end))
        begin = end + 1 + round(rng.exponential(max(mean_off - 1, 0.1)))
    return intervals


def presence(
    times: np.ndarray, intervals: list[tuple[int, int]], slide: float = 0.8
) -> np.ndarray:
    """Turn intervals into how far a tool has slid into view.

    On whole seconds the tool is fully in from an interval's first second
    on and fully out from its end on; it slides in between whole seconds.

    Args:
        times (np.ndarray): Sampling times in seconds.
        intervals (list[tuple[int, int]]): See :func:`on_off_intervals`.
        slide (float): Seconds it takes, below 1. Defaults to 0.8.

    Returns:
        np.ndarray: float64 values 0..1 ``(len(times),)``.
    """
    level = np.zeros(len(times))
    for start, stop in intervals:
        rise = 1 + (times - start) / slide
        fall = (stop - times) / slide
        np.maximum(level, np.clip(np.minimum(rise, fall), 0, 1), out=level)
    return level
