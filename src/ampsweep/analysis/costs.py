"""The goal that an arm is recommended for, the costs that it may go by, pair by pair, and the figures of arms by pair
key, so that any two arms can be held against each other where both have them.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.pairing import Figures, Pair, PairedRuns, energies_of, losses_of, peaks_of, times_of
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, geometric_mean, mean_difference, mean_ratio
from ampsweep.analysis.time_to_loss import Objective, WayToLoss
from ampsweep.finding import Finding
from ampsweep.text import GIB, listed, plural

CostKind = Literal["time to loss", "energy to loss", "step time", "energy of a sample"]
"""The cost that ranks arms: up to the loss that the baseline ends at, or of a step (a sample) whatever it learns."""

PassedOverWhy = Literal["no curves", "other metrics", "no energy", "not reached", "too few pairs", "too noisy"]
"""The reason why the cost up to the loss does not rank the arms."""

_PASSED_OVER: Final[dict[PassedOverWhy, str]] = {
    "no curves": "no undisturbed curve of the loss is known of {}",
    "other metrics": "the curves of {} are of another loss",
    "no energy": "no energy was counted along the curves of {}",
    "not reached": "{} did not reach it in every pair",
    "too few pairs": f"fewer than {MIN_PAIRS} pairs have curves of {{}}",
    "too noisy": "that of {} is too noisy",
}
_MAX_NAMED: Final = 4
"""Arms that a sentence names; more are counted."""

MAX_DOUBT: Final = 1.1
"""Factor of the baseline's cost within which a cost must be known to lie if the two are not resolved."""

TO_LOSS: Final[Mapping[Objective, CostKind]] = {"time": "time to loss", "energy": "energy to loss"}
OF_STEP: Final[Mapping[Objective, CostKind]] = {"time": "step time", "energy": "energy of a sample"}
COST_NAMES: Final[dict[CostKind, str]] = {
    "time to loss": "time to the loss",
    "energy to loss": "energy to the loss",
    "step time": "step time",
    "energy of a sample": "energy of a sample",
}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Least time or energy to the loss, within the memory given."""

    objective: Objective = "time"
    memory_gib: float | None = None
    """Peak of allocated tensor bytes that an arm may need on its fullest rank. None: what its device held."""

    @property
    def memory_bytes(self) -> float | None:
        return None if self.memory_gib is None else self.memory_gib * GIB


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of an arm beside the baseline's."""

    by_pair: Figures
    """(baseline, arm) in seconds, milliseconds or joules; none of an arm that did not reach the loss in every pair."""
    gain: Estimate | None
    """Baseline's over the arm's: above 1 is less cost. None without pairs, and unless it got there in all of them."""
    gain_at_most: Estimate | None = None
    """The most that the gain can be, of an arm that did not get there in every pair."""

    @property
    def is_known(self) -> bool:
        """True if the cost is resolved from the baseline's, or known to be about the same."""
        return self.gain is not None and is_known(self.gain)

    @property
    def is_more(self) -> bool:
        """True for an arm that did not get there, and had spent more than the baseline when its run ended."""
        most = self.gain_at_most
        return most is not None and most.resolves(1.0) and most.value < 1


@dataclass(frozen=True, kw_only=True)
class PassedOver(Finding):
    """One reason why the cost up to the loss does not rank the arms, and the arms that it holds for."""

    why: PassedOverWhy
    arms: tuple[str, ...]

    @property
    def sentence(self) -> str:
        arms = listed(self.arms) if len(self.arms) <= _MAX_NAMED else plural(len(self.arms), "arm")
        return _PASSED_OVER[self.why].format(arms)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The cost that arms are ranked by."""

    cost: CostKind
    metric: str | None = None
    """The loss of a cost up to it."""
    margin_pct: float | None = None
    """The margin on it, in percent of the loss that the baseline ends at."""
    passed_over: tuple[PassedOver, ...] = ()
    """Reasons why it is no cost up to the loss."""

    @property
    def is_to_loss(self) -> bool:
        return self.cost in TO_LOSS.values()

    @property
    def objective(self) -> Objective:
        return "time" if self.cost in (TO_LOSS["time"], OF_STEP["time"]) else "energy"


def cost_of(kind: CostKind, pairs: Sequence[Pair], to_loss: WayToLoss | None) -> Cost:
    """The cost of the arm of `pairs`, whose way to the loss is `to_loss`."""
    if kind == "step time" or kind == "energy of a sample":
        figures = times_of(pairs) if kind == "step time" else energies_of(pairs)
        return Cost(by_pair=figures, gain=_gain(figures.values()))
    if to_loss is None:
        return Cost(by_pair={}, gain=None)
    figures = to_loss.seconds if kind == "time to loss" else to_loss.joules
    gain = _gain(figures.values()) if len(figures) == to_loss.told.n else None
    return Cost(by_pair=figures, gain=gain) if to_loss.reached else Cost(by_pair={}, gain=None, gain_at_most=gain)


def ranking(objective: Objective, arms: Mapping[str, tuple[Sequence[Pair], WayToLoss | None]]) -> Ranking:
    """Choose the cost that ranks `arms`: that up to the loss where every arm's is known, else that of a step.

    An arm that did not reach the loss, though its run cost more than the baseline's way there, is known to cost more.
    """
    metric = next((to_loss.told.metric for _, to_loss in arms.values() if to_loss is not None), None)
    why: dict[PassedOverWhy, list[str]] = {}
    for arm, (pairs, to_loss) in arms.items():
        kind = _passed_over(TO_LOSS[objective], pairs, to_loss, metric)
        if kind is not None:
            why.setdefault(kind, []).append(arm)
    if why or metric is None:
        passed_over = tuple(PassedOver(why=kind, arms=tuple(of)) for kind, of in why.items())
        return Ranking(cost=OF_STEP[objective], passed_over=passed_over)
    margin_pct = next(to_loss.told.margin_pct for _, to_loss in arms.values() if to_loss is not None)
    return Ranking(cost=TO_LOSS[objective], metric=metric, margin_pct=margin_pct)


def is_known(ratio: Estimate) -> bool:
    """True if a ratio is resolved from 1, or known to lie within 10% of it."""
    if ratio.exact or ratio.resolves(1.0):
        return True
    ends = ratio.interval
    return ends is not None and ends[0] >= 1 / MAX_DOUBT and ends[1] <= MAX_DOUBT


def _passed_over(
    kind: CostKind, pairs: Sequence[Pair], to_loss: WayToLoss | None, metric: str | None
) -> PassedOverWhy | None:
    if to_loss is None:
        return "no curves"
    if to_loss.told.metric != metric:
        return "other metrics"
    if kind == "energy to loss" and not to_loss.joules:
        return "no energy"
    cost = cost_of(kind, pairs, to_loss)
    if cost.is_more:
        return None
    if not to_loss.reached:
        return "not reached"
    if cost.gain is None or cost.gain.n < MIN_PAIRS:
        return "too few pairs"
    return None if cost.is_known else "too noisy"


def _gain(figures: Iterable[tuple[float, float]]) -> Estimate | None:
    known = list(figures)
    return mean_ratio(known) if known else None


Values = Mapping[str, float]
"""Pair key -> figure."""

_OTHER_COSTS: Final[tuple[CostKind, ...]] = ("time to loss", "energy to loss", "energy of a sample")


@dataclass(frozen=True, kw_only=True)
class ArmValues:
    """One arm's own figures in its pairs with the baseline; the baseline's in the pairs of all arms."""

    arm: str
    step_ms: Values
    peak_bytes: Values
    """Peak of allocated tensor bytes, of the fullest rank."""
    loss: Values
    """Final validation loss."""
    costs: Mapping[CostKind, Values]
    """Costs other than step times, as far as they are known in every pair."""

    def cost(self, kind: CostKind) -> Values:
        """Milliseconds of a step, joules of a sample, or seconds or joules up to the loss."""
        return self.step_ms if kind == "step time" else self.costs.get(kind, {})

    def mean_cost(self, kind: CostKind) -> float | None:
        """Geometric mean over pairs."""
        return geometric_mean([*self.cost(kind).values()])

    @property
    def mean_peak_bytes(self) -> float | None:
        return statistics.fmean(self.peak_bytes.values()) if self.peak_bytes else None


def arm_values(arm: str, pairs: Sequence[Pair], to_loss: WayToLoss | None) -> ArmValues:
    """The figures of an arm other than the baseline, of its `pairs`."""
    by_pair = {kind: cost_of(kind, pairs, to_loss).by_pair for kind in _OTHER_COSTS}
    costs = {kind: {key: own for key, (_, own) in of.items()} for kind, of in by_pair.items()}
    return _values(arm, PairedRuns(pairs, is_baseline=False), costs)


def baseline_values(baseline: str, arms: Sequence[tuple[Sequence[Pair], WayToLoss | None]]) -> ArmValues:
    """The figures of the baseline, of the pairs of all other arms and their ways to its loss."""
    row = PairedRuns([pair for pairs, _ in arms for pair in pairs], is_baseline=True)
    costs = {
        kind: {key: own for of in arms for key, (own, _) in cost_of(kind, *of).by_pair.items()} for kind in _OTHER_COSTS
    }
    return _values(baseline, row, costs)


def _values(arm: str, row: PairedRuns, costs: Mapping[CostKind, Values]) -> ArmValues:
    peaks = {key: peak * GIB for key, peak in row.figures(peaks_of).items()}
    return ArmValues(arm=arm, step_ms=row.figures(times_of), peak_bytes=peaks, loss=row.figures(losses_of), costs=costs)


def ratio_between(numerator: Values, denominator: Values) -> Estimate | None:
    """Geometric mean of the ratios in the pairs that both have; None without any that is positive."""
    both = [(value, denominator[key]) for key, value in numerator.items() if key in denominator]
    positive = [pair for pair in both if min(pair) > 0]
    return mean_ratio(positive) if positive else None


def difference_between(one: Values, other: Values) -> Estimate | None:
    """Mean of `one` minus `other` in the pairs that both have; None without any."""
    gaps = [value - other[key] for key, value in one.items() if key in other]
    return mean_difference(gaps) if gaps else None
