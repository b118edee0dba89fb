"""The costs that a recommendation may go by, pair by pair, and the one that it goes by."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.goal import Objective
from ampsweep.analysis.pair_figures import Figures, energies_of, times_of
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, mean_ratio
from ampsweep.analysis.time_to_loss import TimeToLoss

CostKind = Literal["time to loss", "energy to loss", "step time", "energy of a sample"]
"""The cost that ranks arms: up to the loss that the baseline ends at, or of a step (a sample) whatever it learns."""

PassedOverKind = Literal["no curves", "other metrics", "no energy", "not reached", "too few pairs", "too noisy"]
"""The reason why the cost up to the loss does not rank the arms."""

MAX_DOUBT: Final = 1.1
"""Factor of the baseline's cost within which a cost must be known to lie if the two are not resolved."""

TO_LOSS: Final[Mapping[Objective, CostKind]] = {"time": "time to loss", "energy": "energy to loss"}
OF_STEP: Final[Mapping[Objective, CostKind]] = {"time": "step time", "energy": "energy of a sample"}


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
class PassedOver:
    """One reason why the cost up to the loss does not rank the arms, and the arms that it holds for."""

    kind: PassedOverKind
    arms: tuple[str, ...]


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


def cost_of(kind: CostKind, pairs: Sequence[Pair], to_loss: TimeToLoss | None) -> Cost:
    """The cost of the arm of `pairs`, whose way to the loss is `to_loss`."""
    if kind == "step time" or kind == "energy of a sample":
        figures = times_of(pairs) if kind == "step time" else energies_of(pairs)
        return Cost(by_pair=figures, gain=_gain(figures.values()))
    if to_loss is None:
        return Cost(by_pair={}, gain=None)
    figures = dict(to_loss.seconds if kind == "time to loss" else to_loss.joules)
    gain = _gain(figures.values()) if len(figures) == to_loss.n else None
    return Cost(by_pair=figures, gain=gain) if to_loss.reached else Cost(by_pair={}, gain=None, gain_at_most=gain)


def ranking(objective: Objective, arms: Mapping[str, tuple[Sequence[Pair], TimeToLoss | None]]) -> Ranking:
    """Choose the cost that ranks `arms`: that up to the loss where every arm's is known, else that of a step.

    An arm that did not reach the loss, though its run cost more than the baseline's way there, is known to cost more.
    """
    metric = next((to_loss.metric for _, to_loss in arms.values() if to_loss is not None), None)
    why: dict[PassedOverKind, list[str]] = {}
    for arm, (pairs, to_loss) in arms.items():
        kind = _passed_over(TO_LOSS[objective], pairs, to_loss, metric)
        if kind is not None:
            why.setdefault(kind, []).append(arm)
    if why or metric is None:
        passed_over = tuple(PassedOver(kind=kind, arms=tuple(of)) for kind, of in why.items())
        return Ranking(cost=OF_STEP[objective], passed_over=passed_over)
    margin_pct = next(to_loss.margin_pct for _, to_loss in arms.values() if to_loss is not None)
    return Ranking(cost=TO_LOSS[objective], metric=metric, margin_pct=margin_pct)


def is_known(ratio: Estimate) -> bool:
    """True if a ratio is resolved from 1, or known to lie within 10% of it."""
    if ratio.exact or ratio.resolves(1.0):
        return True
    ends = ratio.interval
    return ends is not None and ends[0] >= 1 / MAX_DOUBT and ends[1] <= MAX_DOUBT


def _passed_over(
    kind: CostKind, pairs: Sequence[Pair], to_loss: TimeToLoss | None, metric: str | None
) -> PassedOverKind | None:
    if to_loss is None:
        return "no curves"
    if to_loss.metric != metric:
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
