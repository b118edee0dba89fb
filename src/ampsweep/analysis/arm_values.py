"""The figures of one arm by pair key, so that any two arms can be held against each other where both have them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.costs import CostKind, cost_of
from ampsweep.analysis.pair_figures import Row, losses_of, peaks_of, times_of
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.statistics import Estimate, geometric_mean, mean_difference, mean_ratio
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.text import GIB

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


def arm_values(arm: str, pairs: Sequence[Pair], to_loss: TimeToLoss | None) -> ArmValues:
    """The figures of an arm other than the baseline, of its `pairs`."""
    row = Row(pairs, is_baseline=False)
    return ArmValues(
        arm=arm,
        step_ms=row.figures(times_of),
        peak_bytes={key: peak * GIB for key, peak in row.figures(peaks_of).items()},
        loss=row.figures(losses_of),
        costs={
            kind: {key: own for key, (_, own) in cost_of(kind, pairs, to_loss).by_pair.items()} for kind in _OTHER_COSTS
        },
    )


def baseline_values(baseline: str, arms: Sequence[tuple[Sequence[Pair], TimeToLoss | None]]) -> ArmValues:
    """The figures of the baseline, of the pairs of all other arms and their ways to its loss."""
    row = Row([pair for pairs, _ in arms for pair in pairs], is_baseline=True)
    costs = {
        kind: {key: own for of in arms for key, (own, _) in cost_of(kind, *of).by_pair.items()} for kind in _OTHER_COSTS
    }
    return ArmValues(
        arm=baseline,
        step_ms=row.figures(times_of),
        peak_bytes={key: peak * GIB for key, peak in row.figures(peaks_of).items()},
        loss=row.figures(losses_of),
        costs=costs,
    )


def ratio_between(numerator: Values, denominator: Values) -> Estimate | None:
    """Geometric mean of the ratios in the pairs that both have; None without any that is positive."""
    both = [(value, denominator[key]) for key, value in numerator.items() if key in denominator]
    positive = [pair for pair in both if min(pair) > 0]
    return mean_ratio(positive) if positive else None


def difference_between(one: Values, other: Values) -> Estimate | None:
    """Mean of `one` minus `other` in the pairs that both have; None without any."""
    gaps = [value - other[key] for key, value in one.items() if key in other]
    return mean_difference(gaps) if gaps else None
