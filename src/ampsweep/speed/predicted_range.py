"""Predicted figures with their ranges."""

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Final

NINE_OF_TEN: Final = 1.645  # standard deviations of a normal distribution on either side


@dataclass(frozen=True)
class PredictedRange:
    """A prediction, and the range in which nine of ten measurements lie: as far below as above it, by a factor,
    but a time not below the least possible."""

    expected: float
    low: float
    high: float

    def of(self, value: float) -> "PredictedRange":
        """Another figure with the same relative error."""
        return in_range(value, log(self.high / self.expected) / NINE_OF_TEN)


def in_range(expected: float, spread: float) -> PredictedRange:
    """A prediction by the standard deviation of the logarithm of measured over predicted figures."""
    factor = exp(NINE_OF_TEN * spread)
    return PredictedRange(expected, expected / factor, expected * factor)


def speedup(baseline: PredictedRange, other: PredictedRange, correlation: float) -> PredictedRange:
    """How many times as fast `other` is, by times on one device; `correlation`: of the logarithms of their errors."""
    first, second = (log(time.high / time.expected) / NINE_OF_TEN for time in (baseline, other))
    spread = sqrt(first**2 + second**2 - 2 * correlation * first * second)
    return in_range(baseline.expected / other.expected, spread)
