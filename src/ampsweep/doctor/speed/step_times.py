"""Times of steps taken in turn: what disturbs one kind of steps disturbs the others alike."""

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


@dataclass(frozen=True)
class StepTimes:
    """Times of a step in ms, each the mean of a block of steps."""

    ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.ms)

    @property
    def least_ms(self) -> float:
        """The step's time where the load of others was least: what parts of it are compared with, which are least
        times, too."""
        return min(self.ms)

    @property
    def spread_pct(self) -> float:
        """Half the range of the middle half of the times, in percent of the median."""
        low, high = _quartiles(self.ms)
        return 50 * (high - low) / self.median_ms


@dataclass(frozen=True)
class Ratio:
    """Quotient of two kinds of steps by the blocks that were taken one after the other."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""

    @staticmethod
    def of(above: StepTimes, below: StepTimes) -> "Ratio":
        """The times of `above` over those of `below`, round by round."""
        quotients = [one / other for one, other in zip(above.ms, below.ms, strict=True)]
        return Ratio(statistics.median(quotients), *_quartiles(quotients))


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile, interpolated linearly between values."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


def times_in_turn(
    steps: Sequence[Callable[[], object]], moments: Moments, *, seconds: float, warmup: int = 2
) -> list[StepTimes]:
    """Time several kinds of steps in turn, in blocks of about 30 ms, for so many seconds after a warm-up.

    There are three rounds at least; of steps that take longer than there is time, one.

    Args:
        warmup: steps of each kind before; one of a kind that takes half a second.
    """
    lengths = [_warmed_up(step, moments, warmup) for step in steps]
    counts = [max(1, min(_MAX_STEPS, round(_BLOCK_MS / length_ms))) for length_ms in lengths]
    num_rounds = _MIN_ROUNDS if 1e-3 * sum(lengths) <= max(seconds, 0.0) else 1
    end_s = monotonic() + seconds
    found: list[list[float]] = [[] for _ in steps]
    while len(found[0]) < num_rounds or (monotonic() < end_s and len(found[0]) < _MAX_ROUNDS):
        for step, count, times in zip(steps, counts, found, strict=True):
            times.append(_block_ms(step, count, moments))
    return [StepTimes(tuple(times)) for times in found]


def _warmed_up(step: Callable[[], object], moments: Moments, num_steps: int) -> float:
    ms = _block_ms(step, 1, moments)
    for _ in range(num_steps - 1):
        if ms < _LONG_MS:
            ms = min(ms, _block_ms(step, 1, moments))
    return ms


def _block_ms(step: Callable[[], object], count: int, moments: Moments) -> float:
    moments.wait()
    start = moments.now()
    for _ in range(count):
        step()
    return moments.since_ms(start) / count
