"""Curves for a page: thinned without hiding a spike, with their points in few characters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ampsweep.analysis.time_to_loss import MetricSeries

Array = NDArray[np.float64]

_DIGITS: Final = 5
"""Significant digits of a point; a figure in a table has all of its own."""
_MAX_WHOLE: Final = 1e15


class Curve(MetricSeries):
    """A metric's values by step, for a page."""

    def __len__(self) -> int:
        return len(self.steps)

    def thinned(self, max_points: int) -> "Curve":
        """At most `max_points` points: of each stretch of steps its lowest and its highest value, at their own steps.

        A stretch with non-finite values keeps one of them too, so that a gap stays a gap.
        """
        if len(self) <= max_points:
            return self
        is_finite = np.isfinite(self.values)
        num_stretches = max(max_points // (2 if is_finite.all() else 3), 1)
        finite, gap = (_stretches(one, num_stretches, False) for one in (is_finite, ~is_finite))
        lowest = _stretches(np.where(is_finite, self.values, np.inf), num_stretches, np.inf).argmin(axis=1)
        highest = _stretches(np.where(is_finite, self.values, -np.inf), num_stretches, -np.inf).argmax(axis=1)
        has_finite, has_gap = finite.any(axis=1), gap.any(axis=1)
        first = np.arange(len(finite)) * finite.shape[1]
        at = [(first + lowest)[has_finite], (first + highest)[has_finite], (first + gap.argmax(axis=1))[has_gap]]
        kept = np.unique(np.concatenate(at))
        return Curve(self.steps[kept], self.values[kept])


@dataclass(frozen=True)
class Band:
    """Several runs' curves as one: their mean, lowest and highest value at the steps that all of them logged."""

    steps: Array
    mean: Array
    low: Array
    high: Array

    def thinned(self, max_points: int) -> "Band":
        """At most `max_points` points: for each stretch of steps the mean, the lowest low and the highest high."""
        if len(self.steps) <= max_points:
            return self
        first = np.arange(max_points) * len(self.steps) // max_points
        sizes = np.diff(np.append(first, len(self.steps)))
        return Band(
            np.add.reduceat(self.steps, first) / sizes,
            np.add.reduceat(self.mean, first) / sizes,
            np.minimum.reduceat(self.low, first),
            np.maximum.reduceat(self.high, first),
        )


def band(curves: Sequence[Curve]) -> Band | None:
    """The band of two or more curves; None where they share fewer than two steps with finite values."""
    if len(curves) < 2:
        return None
    usable = [curve.steps[np.isfinite(curve.values)] for curve in curves]
    common = usable[0]
    for steps in usable[1:]:
        if not np.array_equal(common, steps):
            common = np.intersect1d(common, steps, assume_unique=True)
    if len(common) < 2:
        return None
    values = np.stack([curve.values[np.searchsorted(curve.steps, common)] for curve in curves])
    return Band(common, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def short_numbers(values: Array) -> list[float | int | None]:
    """Numbers for JSON: whole ones whole, others with 5 significant digits, non-finite ones as gaps."""
    if (values == np.rint(values)).all() and (np.abs(values) < _MAX_WHOLE).all():  # steps, and in a tenth of the time
        return [*values.astype(np.int64).tolist()]
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> float | int:
    is_large = abs(value) >= 10.0 ** (_DIGITS - 1)
    short = float(round(value)) if is_large else float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < _MAX_WHOLE else short


def _stretches(values: NDArray[Any], num: int, filler: float) -> NDArray[Any]:
    """`values` as rows of one length, at most `num`; the end of the last is `filler`."""
    length = -(-len(values) // num)
    filled = np.full(-(-len(values) // length) * length, filler, dtype=values.dtype)
    filled[: len(values)] = values
    return filled.reshape(-1, length)
