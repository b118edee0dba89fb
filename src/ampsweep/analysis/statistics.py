"""Statistics of paired differences: means with t-intervals, equivalence tests (TOST), medians, and their formatting."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtr, stdtrit

from ampsweep.text import MAX_DECIMALS, decimals, number, signed

CONFIDENCE: Final = 0.95
MIN_PAIRS: Final = 3  # fewer pairs give no interval: at n = 2 the t-quantile is 12.7

TextParts = tuple[str, tuple[str, str] | None]  # a value, and the ends of its interval


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over `n` pairs, in the unit of its name, with its two-sided 95% interval if it has one."""

    value: float
    n: int
    low: float | None = None
    high: float | None = None
    exact: bool = False  # all of at least two values are identical: there is no uncertainty, and no interval

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    def mapped(self, function: Callable[[float], float]) -> "Estimate":
        low, high = sorted(map(function, self.interval)) if self.interval else (None, None)
        return replace(self, value=function(self.value), low=low, high=high)

    def resolves(self, null: float) -> bool:
        """True if the interval excludes `null`, or an exact value differs from it."""
        if self.exact:
            return self.value != null
        return self.interval is not None and not self.interval[0] <= null <= self.interval[1]

    def text(self, digits: int = 3, *, sign: bool = False) -> TextParts:
        """The value and the ends of its interval, with decimals for `digits` significant digits of the value, more if
        the interval's half width is finer; a value within its half width of zero has two digits of the half width.

        >>> Estimate(value=1.4941, n=3, low=1.4552, high=1.5340).text()
        ('1.49', ('1.46', '1.53'))
        >>> Estimate(value=0.00071, n=3, low=-0.0012, high=0.0026).text(sign=True)
        ('+0.0007', ('-0.0012', '+0.0026'))
        """
        if self.interval is None:
            return (signed if sign else number)(self.value, digits), None
        low, high = self.interval
        half_width = max((high - low) / 2, abs(self.value) * 1e-6)
        near_zero = abs(self.value) <= half_width
        places = decimals(half_width, 2) if near_zero else max(decimals(self.value, digits), decimals(half_width, 1))
        plus = "+" if sign else ""
        form = f"{plus}.2e" if places > MAX_DECIMALS else f"{plus}.{max(places, 0)}f"
        return f"{self.value:{form}}", (f"{low:{form}}", f"{high:{form}}")

    @property
    def ratio_parts(self) -> TextParts:
        """Like `text`, but with two digits for each number where a ratio is hardly known."""
        if self.interval is not None and self.interval[1] > 2 * self.interval[0]:
            return number(self.value, 2), (number(self.interval[0], 2), number(self.interval[1], 2))
        return self.text()

    @property
    def ratio_text(self) -> str:
        value, ends = self.ratio_parts
        return f"{value}x{in_brackets(ends)}"


def in_brackets(ends: tuple[str, str] | None) -> str:
    """' [1.46, 1.53]', to follow a value; empty without an interval."""
    return "" if ends is None else f" [{ends[0]}, {ends[1]}]"


def mean_difference(differences: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Mean of paired differences with the one-sample t-interval: mean +- t(0.975, n - 1) s / sqrt(n), for 95%.

    `s` is the sample standard deviation (n - 1). None without differences. Source: W. S. Gosset ("Student"), The
    probable error of a mean, Biometrika 6 (1908); for pairs NIST/SEMATECH e-Handbook of Statistical Methods, 7.3.1.1,
    1.3.5.2.
    """
    n = len(differences)
    if not n:
        return None
    if n > 1 and len(set(differences)) == 1:
        return Estimate(value=differences[0], n=n, exact=True)
    mean = math.fsum(differences) / n
    if n < MIN_PAIRS:
        return Estimate(value=mean, n=n)
    half_width = float(stdtrit(n - 1, 0.5 + confidence / 2)) * statistics.stdev(differences, xbar=mean) / math.sqrt(n)
    return Estimate(value=mean, n=n, low=mean - half_width, high=mean + half_width)


def mean_ratio(pairs: Iterable[tuple[float, float]], confidence: float = CONFIDENCE) -> Estimate | None:
    """Geometric mean of the ratios in (numerator, denominator) pairs, both positive; None without any.

    The interval is the t-interval of the logarithms, transformed back: twice and half as fast count alike, and swapping
    the arms gives the reciprocal. Source: D. G. Altman and J. M. Bland, Transformations, means, and confidence
    intervals, BMJ 312:1079 (1996).
    """
    ratios = [numerator / denominator for numerator, denominator in pairs]
    if len(ratios) > 1 and len(set(ratios)) == 1:
        return Estimate(value=ratios[0], n=len(ratios), exact=True)
    logs = mean_difference([math.log(ratio) for ratio in ratios], confidence)
    return None if logs is None else logs.mapped(math.exp)


Values = Mapping[str, float]  # pair key -> figure


def in_both(values: Values, others: Values) -> list[tuple[float, float]]:
    return [(value, others[key]) for key, value in values.items() if key in others]


def ratio_between(numerator: Values, denominator: Values) -> Estimate | None:
    """Geometric mean of the ratios in the pairs present in both; None without any positive pair."""
    return mean_ratio(both for both in in_both(numerator, denominator) if min(both) > 0)


def saved_pct(before: float, after: float) -> float:
    return 100 * (before - after) / before


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation (None for a single seed) of an arm over seeds."""

    mean: float
    n: int
    sd: float | None = None


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return Spread(mean=mean, n=len(values), sd=statistics.stdev(values, xbar=mean) if len(values) > 1 else None)


def geometric_mean(values: Sequence[float]) -> float:
    if len(set(values)) == 1:
        return values[0]
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def known_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


Position = Literal["inside", "above", "below", "open"]

ALPHA: Final = 0.05  # level of each one-sided test
POWER: Final = 0.8  # chance of a verdict that planned seeds should give, as is customary for trials
MAX_FURTHER_PAIRS: Final = 100


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """The position of a mean difference relative to +-margin, by its t-interval: 90% in a single test at 5%."""

    position: Position  # `inside`, `above` or `below`: the whole interval lies there; `open`: it crosses a margin
    mean: float
    low: float
    high: float
    sd: float  # sample standard deviation of the differences
    margin: float
    n: int

    def further_pairs(self, levels: Mapping[int, float] | None = None) -> int | None:
        """Pairs to add for a verdict with 80% power; 0 with a verdict, None if neither `levels`, the one-sided level of
        a test of n pairs by n, nor by default a hundred more at 5% give one. Mean and spread so far are taken for true.
        """
        if self.sd == 0 or self.position != "open":
            return 0
        if levels is None:
            levels = dict.fromkeys(range(self.n + 1, self.n + MAX_FURTHER_PAIRS + 1), ALPHA)
        later = {n: level for n, level in levels.items() if n > self.n}
        needed = num_pairs_for_verdict(self.mean, self.sd, self.margin, later)
        return None if needed is None else needed - self.n


def num_pairs_for_verdict(mean: float, sd: float, margin: float, levels: Mapping[int, float]) -> int | None:
    """The first n of `levels`, one-sided levels of tests by their number of pairs, at which differences with a true
    `mean` and `sd` (above 0) are found inside +-`margin`, or beyond it, with 80% power; None without any.

    Source: K. F. Phillips, Power of the two one-sided tests procedure in bioequivalence, J. Pharmacokinet. Biopharm. 18
    (1990): the normal distribution of the mean, integrated over the spread of a sample.
    """
    for n, level in levels.items():
        room, shift = (value * math.sqrt(n) / sd for value in (margin, mean))
        half_width = -stdtrit(n - 1, level) * _sampled_spread(n)
        inside = np.maximum(ndtr(room - half_width - shift) - ndtr(half_width - room - shift), 0)
        if max(map(np.mean, (inside, *(ndtr(side * shift - room - half_width) for side in (-1, 1))))) >= POWER:
            return n
    return None


@cache
def _sampled_spread(n: int) -> NDArray[np.float64]:
    """The sample standard deviations of `n` normal values, in units of the true one, at equally likely quantiles."""
    quantiles = (np.arange(100) + 0.5) / 100
    spreads: NDArray[np.float64] = np.sqrt(2 * gammaincinv((n - 1) / 2, quantiles) / (n - 1))
    return spreads


def two_one_sided_tests(differences: Sequence[float], margin: float, level: float = ALPHA) -> Equivalence:
    """Test the mean of at least two paired `differences` against +-`margin`: TOST at `level`, at 5% as a 90% interval.

    A true difference at or beyond the margin, which is above 0, is found `inside` with probability `level` at most.
    Source: D. J. Schuirmann, A comparison of the two one-sided tests procedure and the power approach, J.
    Pharmacokinet. Biopharm. 15 (1987).
    """
    assert len(differences) > 1, "one pair has no spread"
    assert margin > 0, margin
    n = len(differences)
    mean = math.fsum(differences) / n
    sd = 0.0 if len(set(differences)) == 1 else statistics.stdev(differences, xbar=mean)
    half_width = -float(stdtrit(n - 1, level)) * sd / math.sqrt(n)  # the lower tail, since 1 - level may round to 1
    low, high = mean - half_width, mean + half_width
    position: Position = "open"
    if -margin < low and high < margin:
        position = "inside"
    elif low > margin:
        position = "above"
    elif high < -margin:
        position = "below"
    return Equivalence(position=position, mean=mean, low=low, high=high, sd=sd, margin=margin, n=n)
