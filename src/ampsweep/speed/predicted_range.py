"""Predicted figures with their ranges."""

from dataclasses import dataclass
from math import exp, log, sqrt


@dataclass(frozen=True)
class PredictedRange:
    """A prediction, and the range in which nine of ten measurements lie: as far below as above it, by a factor."""

    expected: float
    low: float
    high: float

    def of(self, value: float) -> "PredictedRange":
        """Another figure with the same relative error."""
        factor = self.high / self.expected
        return PredictedRange(value, value / factor, value * factor)


def speedup(baseline: PredictedRange, other: PredictedRange, correlation: float) -> PredictedRange:
    """How many times as fast `other` is, by times on one device; `correlation`: of the logarithms of their errors."""
    first, second = (log(time.high / time.expected) for time in (baseline, other))
    factor = exp(sqrt(first**2 + second**2 - 2 * correlation * first * second))
    expected = baseline.expected / other.expected
    return PredictedRange(expected, expected / factor, expected * factor)
