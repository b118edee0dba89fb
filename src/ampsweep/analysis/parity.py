"""Parity: whether an arm learns the same as the baseline, within a margin that was chosen before the runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.equivalence import MAX_FURTHER_PAIRS, Equivalence, Position, two_one_sided_tests
from ampsweep.analysis.estimate_text import estimate
from ampsweep.analysis.pairs import Pair
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, Spread
from ampsweep.metrics import METRICS
from ampsweep.text import number, plural, signed

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
    """What counts as the same on either side: `margin_pct` of the baseline's mean loss, or in percentage points."""
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
    """Whether the interval leaves out that the arm is worse by the margin: equivalent, better, or between the two."""
    text: str
    """What the verdict stands on, in a clause that follows it."""
    settled_by: str
    """What would settle an inconclusive verdict, and how little these pairs could; empty for the others."""
    short: str
    """Gap and verdict in a few words."""

    @property
    def name(self) -> str:
        """The metric in a sentence."""
        return _name(self.metric)


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
    unit = _POINTS if is_share else _LOSS
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
        text=_too_few(gaps, unit) if tested is None else _text(tested, margin_pct, unit),
        settled_by=_settled_by(tested) if tested is not None and tested.position == "open" else "",
        short=_short(_name(metric), verdict, statistics.fmean(gaps), scale, margin_pct, unit),
    )


def overall_parity(parities: Sequence[Parity]) -> ParityVerdict | None:
    """The verdict on all metrics of an arm: `worse` if one is, else `inconclusive` if one is; None without any."""
    verdicts = {one.verdict for one in parities}
    order: tuple[ParityVerdict, ...] = ("worse", "inconclusive", "equivalent", "better")
    return next((verdict for verdict in order if verdict in verdicts), None)


@dataclass(frozen=True)
class _Unit:
    factor: float
    symbol: str


_LOSS: Final = _Unit(1.0, "")
_POINTS: Final = _Unit(100.0, " pp")


def _name(metric: str) -> str:
    return metric.replace("/", " ")


def _short(name: str, verdict: ParityVerdict, gap: float, scale: float, margin_pct: float, unit: _Unit) -> str:
    if gap == 0:
        return f"no {name} gap"
    share = "" if unit is _POINTS else f" ({signed(100 * gap / scale, 2)}%)"
    symbol = unit.symbol or "%"
    within = {"equivalent": f"equivalent within {margin_pct:g}{symbol}", "inconclusive": "parity inconclusive"}
    told = within.get(verdict, f"{verdict} by more than {margin_pct:g}{symbol}")
    return f"{name} gap {signed(unit.factor * gap, 2)}{unit.symbol}{share}, {told}"


def _too_few(gaps: Sequence[float], unit: _Unit) -> str:
    gap = signed(unit.factor * statistics.fmean(gaps), 2)
    return f"gap {gap}{unit.symbol} in {plural(len(gaps), 'pair')}, at least {MIN_PAIRS} are needed"


def _text(tested: Equivalence, margin_pct: float, unit: _Unit) -> str:
    margin = f"±{number(unit.factor * tested.margin, 2)}{unit.symbol}"
    if unit is _LOSS:
        margin += f" ({margin_pct:g}%)"
    place = {"inside": "inside", "above": "above", "below": "below", "open": "crosses"}[tested.position]
    return f"gap {_gap(tested, unit)} {place} {margin}, n={tested.n}"


def _gap(tested: Equivalence, unit: _Unit) -> str:
    if tested.sd == 0:
        return "of 0 in every pair," if tested.mean == 0 else f"{signed(unit.factor * tested.mean)} in every pair,"
    mean, low, high = (unit.factor * value for value in (tested.mean, tested.low, tested.high))
    value, ends = estimate(Estimate(value=mean, n=tested.n, low=low, high=high), digits=2, sign=True)
    assert ends is not None
    return f"{value}{unit.symbol} [{ends[0]}, {ends[1]}]"


def _settled_by(tested: Equivalence) -> str:
    further = tested.further_pairs
    seeds = f"about {plural(further, 'more seed')}" if further else f"more than {MAX_FURTHER_PAIRS} more seeds"
    chance = f"{100 * (tested.power or 0):.0f}% of equal arms would be found equivalent"
    return f"{seeds} would settle it (with {tested.n} and this spread, {chance})"
