"""Tests that are repeated while pairs are added, with errors of one test: group-sequential TOST with alpha spending.

The looks are those after each pair, from the third to the last planned one. After a share t of the planned pairs each
one-sided test has spent alpha(t) = 2 - 2 Phi(z(1 - alpha/2) / sqrt(t)): hardly anything early, all of alpha at the end.
Sources: K. K. G. Lan and D. L. DeMets, Discrete sequential boundaries for clinical trials, Biometrika 70 (1983), with
their O'Brien-Fleming-like function; for TOST and for an unknown variance, where the nominal levels of the normal
boundaries go to Student's t, C. Jennison and B. W. Turnbull, Group Sequential Methods (2000), chapters 7, 19 and 11.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from ampsweep.analysis.statistics import (
    ALPHA,
    MIN_PAIRS,
    Equivalence,
    Estimate,
    num_pairs_for_verdict,
    two_one_sided_tests,
)

ALPHA_OF_LOOKS: Final = 0.045
"""What each one-sided test spends in all, to err in 5%: with Student's t, levels made for a normal distribution err up
to 13% more often."""

CONFIDENCE_OF_LOOKS: Final = 0.98
"""Nominal level of the t-intervals of effects where pairs end by what they show, such as a narrow interval of the speed
(`is_settled`). They cover the truth in 95% of comparisons, of any noise and from 3 to 40 pairs, where a nominal 95%
gives 90%: pairs end earlier when they happen to lie close together. See `tests/benchmarks/CALIBRATION.md`."""

_NUM_NODES: Final = 601  # of Simpson's rule from 8 standard deviations below 0 to the boundary: z to four decimals
NARROW: Final = 1.025  # ratio of the ends of an interval to its middle: a speed known to within 2.5%


@cache
def nominal_levels(shares: tuple[float, ...], alpha: float = ALPHA_OF_LOOKS) -> tuple[float, ...]:
    """One-sided levels of looks at increasing `shares` of the planned observations, the last of them 1, that together
    reject a true null with the probability `alpha`.

    Brownian motion is integrated from look to look over what has not crossed: P. Armitage, C. K. McPherson and B. C.
    Rowe, Repeated significance tests on accumulating data, J. R. Stat. Soc. A 132 (1969).
    """
    spent = [2 * float(ndtr(ndtri(alpha / 2) / math.sqrt(share))) for share in shares]
    simpson = np.resize([2.0, 4.0], _NUM_NODES)
    simpson[[0, -1]] = 1.0
    levels = list[float]()
    nodes, mass = np.zeros(1), np.ones(1)  # Brownian motion at the look before, and its probability there
    steps, to_spend_at = np.sqrt(np.diff([0.0, *shares])), np.diff([0.0, *spent])
    for share, step, to_spend in zip(shares, steps, to_spend_at, strict=True):
        below, above = 0.0, 40.0  # the boundary in standard deviations
        for _ in range(60):
            middle = (below + above) / 2
            crossing = float(mass @ ndtr((nodes - middle * math.sqrt(share)) / step))
            below, above = (middle, above) if crossing > to_spend else (below, middle)
        levels.append(float(ndtr(-below)))
        end = below * math.sqrt(share)
        grid = np.linspace(min(-8 * math.sqrt(share), end - step), end, _NUM_NODES)
        density = np.exp(-0.5 * ((grid[:, None] - nodes) / step) ** 2) @ mass / (step * math.sqrt(2 * math.pi))
        nodes, mass = grid, density * simpson * (grid[1] - grid[0]) / 3
    return tuple(levels)


@cache
def level_of_looks(max_pairs: int) -> Mapping[int, float]:
    """The one-sided level of the look after n pairs, by n, where at most `max_pairs` are planned."""
    looks = range(min(MIN_PAIRS, max_pairs), max_pairs + 1)
    shares = tuple(n / max_pairs for n in looks)
    return MappingProxyType(dict(zip(looks, nominal_levels(shares), strict=True)))


def seeds_for(sd_over_margin: float, max_pairs: int) -> int | None:
    """Seeds until which an arm whose metric truly equals the baseline's is found equivalent with 80% power, if its gaps
    vary by `sd_over_margin`, their standard deviation over the margin; None if `max_pairs` are not enough."""
    return num_pairs_for_verdict(0.0, sd_over_margin, 1.0, level_of_looks(max_pairs))


def equivalence_tests(
    differences: Sequence[float], margins: Sequence[float], max_pairs: int | None
) -> Iterator[Equivalence]:
    """Yield the test at each look, up to the first that decides: a decision stands, whatever pairs are added later.

    Args:
        differences: of the pairs, in the order in which they were completed.
        margins: that of the first n pairs at n - 1; a look whose margin is 0 decides nothing.
        max_pairs: pairs after which the plan ends, later ones being left out. None: one test of all pairs at 5%.
    """
    levels = {len(differences): ALPHA} if max_pairs is None else level_of_looks(max_pairs)
    for n, level in levels.items():
        if MIN_PAIRS <= n <= len(differences) and margins[n - 1] > 0:
            tested = two_one_sided_tests(differences[:n], margins[n - 1], level)
            yield tested
            if tested.position != "open":
                return


def is_settled(speedup: Estimate) -> bool:
    """Return True if a ratio needs no more pairs: its interval, at `CONFIDENCE_OF_LOOKS`, reaches at most 2.5% from its
    middle, or lies beyond 1 by more than that."""
    if speedup.exact:
        return True
    if speedup.interval is None:
        return False
    low, high = speedup.interval
    return high <= NARROW * speedup.value or low > NARROW or high < 1 / NARROW
