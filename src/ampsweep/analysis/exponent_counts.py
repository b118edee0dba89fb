"""The magnitudes of tensors by their exponents of two, and the shares of them beyond a threshold."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ampsweep.record.numerics import Magnitudes


@dataclass(frozen=True)
class ExponentCounts:
    """Numbers of elements other than zero by the exponent of two of their magnitudes.

    Within one exponent magnitudes are taken to be spread evenly.
    """

    counts: Mapping[int, int]
    """`counts[e]` elements have a magnitude in [2**e, 2**(e + 1))."""

    @staticmethod
    def of(tensors: Iterable[Magnitudes]) -> "ExponentCounts":
        """The counts of some tensors together."""
        counts: Counter[int] = Counter()
        for one in tensors:
            counts.update({one.first_exponent + place: count for place, count in enumerate(one.counts) if count})
        return ExponentCounts(dict(sorted(counts.items())))

    @cached_property
    def total(self) -> int:
        """Elements other than zero."""
        return sum(self.counts.values())

    def share_below(self, threshold: float) -> float:
        """The share, 0 to 1, of the elements whose magnitude is below a threshold; 0 without elements."""
        below = sum(count * _part_below(exponent, threshold) for exponent, count in self.counts.items())
        return below / self.total if self.counts else 0.0

    def sum_share_below(self, threshold: float) -> float:
        """The share, 0 to 1, that elements below a threshold have of the sum of all magnitudes."""
        below = sum(self._sum(exponent, _part_below(exponent, threshold)) for exponent in self.counts)
        return below / self._whole if self.counts else 0.0

    def threshold_of(self, share: float) -> float | None:
        """The threshold below which elements have this share of the sum of all magnitudes; None without elements.

        Args:
            share: above 0, below 1.
        """
        left = share * self._whole
        for exponent in self.counts:
            of_exponent = self._sum(exponent, 1.0)
            if left < of_exponent:
                # Magnitudes from 2**e to (1 + p) 2**e, count * p of them, add up to count * 2**e * (p + p**2 / 2).
                part = math.sqrt(1.0 + 3.0 * left / of_exponent) - 1.0
                return math.ldexp(1.0 + part, exponent)
            left -= of_exponent
        return None

    @cached_property
    def _whole(self) -> float:
        return sum(self._sum(exponent, 1.0) for exponent in self.counts)

    def _sum(self, exponent: int, part: float) -> float:
        """The sum of the magnitudes with an exponent, up to a part of their range."""
        return self.counts[exponent] * math.ldexp(part + part * part / 2, exponent)


def _part_below(exponent: int, threshold: float) -> float:
    """The part of the magnitudes with an exponent that is below a threshold."""
    return min(max(math.ldexp(threshold, -exponent) - 1.0, 0.0), 1.0)
