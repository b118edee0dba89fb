"""Two one-sided tests (TOST) of whether a mean difference lies inside a margin, and the number of pairs they need."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtr, stdtrit

Position = Literal["inside", "above", "below", "open"]

ALPHA: Final = 0.05
"""Chance of either one-sided test to find a difference inside the margin that is not."""
POWER: Final = 0.8
"""Chance of an answer that a number of pairs is asked to give: the custom of planning a trial."""
MAX_FURTHER_PAIRS: Final = 100

_NUM_SLICES: Final = 256
"""Equally likely slices of a standard deviation's distribution; the chances come out right to four decimals."""


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """The place of a mean difference against +-margin, by its 90% t-interval."""

    position: Position
    """`inside`: all of the interval is; `above`, `below`: all of it lies beyond that margin; `open`: it crosses one."""
    mean: float
    low: float
    high: float
    sd: float
    """Sample standard deviation of the differences."""
    margin: float
    n: int

    @cached_property
    def power(self) -> float | None:
        """Chance that n pairs with this spread are found `inside` if the true difference is 0; None without spread."""
        return chance_inside(self.n, mean=0.0, sd=self.sd, margin=self.margin) if self.sd > 0 else None

    @cached_property
    def further_pairs(self) -> int | None:
        """Pairs to add until four in five such comparisons find an answer; None if more than `MAX_FURTHER_PAIRS`.

        Taken for true are the mean and the spread seen so far: the smallest number of pairs with power 0.8, as in
        S.-C. Chow, J. Shao and H. Wang, Sample Size Calculations in Clinical Research, 2nd ed. (2008), 3.1.3, but with
        exact chances instead of their approximation.
        """
        if self.sd == 0 or self.position != "open":
            return 0
        totals = range(self.n + 1, self.n + MAX_FURTHER_PAIRS + 1)
        found = bisect_left(
            totals, POWER, key=lambda n: chance_of_answer(n, mean=self.mean, sd=self.sd, margin=self.margin)
        )
        return None if found == len(totals) else found + 1


def two_one_sided_tests(differences: Sequence[float], margin: float) -> Equivalence:
    """Hold the mean of paired `differences` against +-`margin`: TOST at 5% as a 90% interval, in the unit of both.

    Finds `inside` for a true difference at or beyond the margin with a chance of 5% at most. Source: D. J. Schuirmann,
    A comparison of the two one-sided tests procedure and the power approach, J. Pharmacokinet. Biopharm. 15 (1987).

    Args:
        differences: one finite number a pair, at least two.
        margin: above 0.
    """
    assert len(differences) > 1, "one pair has no spread"
    assert margin > 0, margin
    n = len(differences)
    mean = math.fsum(differences) / n
    sd = 0.0 if len(set(differences)) == 1 else statistics.stdev(differences, xbar=mean)
    half_width = float(stdtrit(n - 1, 1 - ALPHA)) * sd / math.sqrt(n)
    low, high = mean - half_width, mean + half_width
    position: Position = "open"
    if -margin < low and high < margin:
        position = "inside"
    elif low > margin:
        position = "above"
    elif high < -margin:
        position = "below"
    return Equivalence(position=position, mean=mean, low=low, high=high, sd=sd, margin=margin, n=n)


def chance_inside(n: int, *, mean: float, sd: float, margin: float) -> float:
    """Chance that `n` normal differences of true `mean` and `sd` are found inside +-`margin`: exact power of TOST.

    Source: K. F. Phillips, Power of the two one-sided tests procedure in bioequivalence, J. Pharmacokinet. Biopharm. 18
    (1990): a bivariate noncentral t, here as a mean over the distribution of the sample standard deviation.
    """
    half_widths = _half_widths(n) * sd
    error = sd / math.sqrt(n)
    chances = ndtr((margin - half_widths - mean) / error) - ndtr((half_widths - margin - mean) / error)
    return float(np.mean(np.maximum(chances, 0.0)))


def chance_of_answer(n: int, *, mean: float, sd: float, margin: float) -> float:
    """Chance that `n` such differences are found inside, above or below, and not open."""
    half_widths = _half_widths(n) * sd
    error = sd / math.sqrt(n)
    beyond = [ndtr((side * mean - margin - half_widths) / error) for side in (1, -1)]
    return chance_inside(n, mean=mean, sd=sd, margin=margin) + float(np.mean(beyond[0] + beyond[1]))


@cache
def _half_widths(n: int) -> NDArray[np.float64]:
    """Half widths of the 90% interval of `n` differences of standard deviation 1, equally likely each."""
    middles = (np.arange(_NUM_SLICES) + 0.5) / _NUM_SLICES
    sample_sd = np.sqrt(chdtri(n - 1, middles) / (n - 1))
    half_widths = np.asarray(stdtrit(n - 1, 1 - ALPHA) * sample_sd / math.sqrt(n))
    half_widths.flags.writeable = False
    return half_widths
