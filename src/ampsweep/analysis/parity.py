"""Parity: the verdict on whether an arm learns as well as the baseline, within a margin chosen before the runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.equivalence import Position, two_one_sided_tests
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.statistics import MIN_PAIRS, Spread
from ampsweep.metrics import METRICS

ParityVerdict = Literal["equivalent", "worse", "better", "inconclusive"]

_WHERE_LOWER_IS_BETTER: Final[dict[Position, ParityVerdict]] = {
    "inside": "equivalent",
    "above": "worse",
    "below": "better",
    "open": "inconclusive",
}
_WHERE_HIGHER_IS_BETTER: Final[dict[Position, ParityVerdict]] = {
    **_WHERE_LOWER_IS_BETTER,
    "above": "better",
    "below": "worse",
}


@dataclass(frozen=True, kw_only=True)
class Parity:
    """One final metric of an arm against the baseline's. Figures are in the metric's own unit (a loss, a share)."""

    metric: str
    verdict: ParityVerdict
    n: int
    """Pairs in which both arms took all of their steps."""
    gap: float
    """Mean over pairs of the arm's value minus the baseline's."""
    low: float | None
    high: float | None
    """90% t-interval of the gap, that of TOST at 5%; None under three pairs."""
    margin: float
    """The gap that counts as none on either side: `margin_pct` of the baseline's mean loss, or percentage points."""
    margin_pct: float
    gap_sd: float | None
    """Sample standard deviation of the gaps over pairs."""
    baseline_sd: float | None
    """The baseline's own standard deviation over seeds: what another seed changes."""
    power: float | None
    """Chance that an arm with a true gap of zero is found equivalent with this n and this spread of gaps."""
    further_seeds: int | None
    """About how many more seeds would settle an inconclusive verdict (0 of the others); None if more than 100."""
    not_worse: bool
    """True if the interval leaves out that the arm is worse by the margin: equivalent, better, or between the two."""
    is_share: bool
    """True if the metric is a share that is better higher; its gaps are in percentage points."""
    scale: float
    """The figure that `margin_pct` is a percentage of: the baseline's mean loss, or 1 for a share."""

    @property
    def is_tested(self) -> bool:
        """True if there are pairs enough for an interval, and so for another verdict than `inconclusive`."""
        return self.low is not None


def parity(pairs: Sequence[Pair], metric: str, *, margin_pct: float, baseline: Spread | None) -> Parity | None:
    """Hold the paired gaps of `metric` at the end of training against the margin; None where no pair has it.

    Runs cut short give none: half a training is another training. A margin of nothing (a baseline loss of 0) gives
    none either.

    Args:
        pairs: an arm's pairs with the baseline.
        metric: a key of `metrics.METRICS` that is better lower (its margin is a percentage of the baseline's mean) or
            a share that is better higher (its margin is in percentage points).
        margin_pct: the margin, above 0.
        baseline: the baseline's values over seeds.
    """
    values = [figures for pair in pairs if (figures := pair.final_figures(metric)) is not None]
    is_share = METRICS[metric].better == "higher"
    scale = 1.0 if is_share or not values else abs(statistics.fmean(value for value, _ in values))
    if not values or scale == 0:
        return None
    gaps = [arm - reference for reference, arm in values]
    margin = margin_pct / 100 * scale
    tested = two_one_sided_tests(gaps, margin) if len(gaps) >= MIN_PAIRS else None
    verdicts = _WHERE_HIGHER_IS_BETTER if is_share else _WHERE_LOWER_IS_BETTER
    verdict: ParityVerdict = "inconclusive" if tested is None else verdicts[tested.position]
    return Parity(
        metric=metric,
        verdict=verdict,
        n=len(gaps),
        gap=statistics.fmean(gaps),
        low=None if tested is None else tested.low,
        high=None if tested is None else tested.high,
        margin=margin,
        margin_pct=margin_pct,
        gap_sd=statistics.stdev(gaps) if len(gaps) > 1 else None,
        baseline_sd=None if baseline is None else baseline.sd,
        power=None if tested is None else tested.power,
        further_seeds=MIN_PAIRS - len(gaps) if tested is None else tested.further_pairs,
        not_worse=tested is not None and (tested.low > -margin if is_share else tested.high < margin),
        is_share=is_share,
        scale=scale,
    )


def overall_parity(parities: Sequence[Parity]) -> ParityVerdict | None:
    """The verdict on all metrics of an arm: `worse` if one is, else `inconclusive` if one is; None without any."""
    verdicts = {one.verdict for one in parities}
    order: tuple[ParityVerdict, ...] = ("worse", "inconclusive", "equivalent", "better")
    return next((verdict for verdict in order if verdict in verdicts), None)
