"""Times of steps taken in turn, so that a disturbance affects all kinds of steps alike."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import numpy as np

from ampsweep.monitors.step_clock import Moments

_BLOCK_MS: Final = 30.0
"""Time of a block of steps, as far as a step is shorter."""
_MAX_STEPS: Final = 50
_MAX_ROUNDS: Final = 60
_MIN_ROUNDS: Final = 3
_LONG_MS: Final = 500.0
"""A step that takes longer is warmed up once only."""


@dataclass(frozen=True)
class StepTimes:
    """Times of a step in ms, each the mean of a block of steps."""

    ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.ms)


@dataclass(frozen=True)
class Ratio:
    """Median and upper quartile of the quotients of two kinds of steps, by the blocks taken one after the other."""

    median: float
    high: float

    @staticmethod
    def of(above: StepTimes, below: StepTimes) -> "Ratio":
        """The times of `above` over those of `below`, round by round."""
        median, high = np.quantile(np.divide(above.ms, below.ms), (0.5, 0.75))
        return Ratio(float(median), float(high))


def times_in_turn(steps: Sequence[Callable[[], object]], moments: Moments, *, seconds: float) -> list[StepTimes]:
    """Time several kinds of steps in turn, in blocks of about 30 ms, for so many seconds after a warm-up.

    There are at least three rounds, or one where three would take longer than there is time.
    """
    lengths = [timed_ms(step, moments) for step in steps]
    for number, step in enumerate(steps):
        if lengths[number] < _LONG_MS:
            lengths[number] = min(lengths[number], timed_ms(step, moments))
    counts = [max(1, min(_MAX_STEPS, round(_BLOCK_MS / length_ms))) for length_ms in lengths]
    num_rounds = _MIN_ROUNDS if 1e-3 * sum(lengths) <= max(seconds, 0.0) else 1
    end_s = monotonic() + seconds
    found: list[list[float]] = [[] for _ in steps]
    while len(found[0]) < num_rounds or (monotonic() < end_s and len(found[0]) < _MAX_ROUNDS):
        for step, count, times in zip(steps, counts, found, strict=True):
            times.append(timed_ms(step, moments, count))
    return [StepTimes(tuple(times)) for times in found]


def timed_ms(call: Callable[[], object], moments: Moments, count: int = 1) -> float:
    """The mean time of so many calls, with an empty queue before them, until the device is done."""
    moments.wait()
    start = moments.now()
    for _ in range(count):
        call()
    return moments.since_ms(start) / count
