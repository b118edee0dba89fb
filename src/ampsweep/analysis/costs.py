"""The goal that an arm is recommended for, the costs that it may go by, and the figures of arms by pair key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.pairing import Figures, Pair, one_side, paired_figures, peaks_of
from ampsweep.analysis.runs import ENERGY_OF_SAMPLE, STEP_MS, VAL_LOSS
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, Values, mean_ratio
from ampsweep.analysis.time_to_loss import Objective, TimeToLoss
from ampsweep.finding import Finding
from ampsweep.text import GIB, listed, plural

CostKind = Literal["time to loss", "energy to loss", "step time", "energy of a sample"]
"""The cost that ranks arms: up to the loss that the baseline ends at, or of a step (a sample) whatever it learns."""

PassedOverWhy = Literal["no curves", "other metrics", "no energy", "not reached", "too few pairs", "too noisy"]

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
"""Factor within which two costs must be known to lie if they are not resolved."""

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
        gain = self.gain
        if gain is None or gain.exact or gain.resolves(1.0):
            return gain is not None
        return gain.interval is not None and gain.interval[0] >= 1 / MAX_DOUBT and gain.interval[1] <= MAX_DOUBT

    @property
    def is_more(self) -> bool:
        """True for an arm that did not get there, and had spent more than the baseline when its run ended."""
        most = self.gain_at_most
        return most is not None and most.resolves(1.0) and most.value < 1


class PassedOver(Finding):
    """A reason why the cost up to the loss does not rank the arms, and the arms that it holds for."""

    why: PassedOverWhy
    arms: tuple[str, ...]

    @property
    def sentence(self) -> str:
        arms = listed(self.arms) if len(self.arms) <= _MAX_NAMED else plural(len(self.arms), "arm")
        return _PASSED_OVER[self.why].format(arms)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    cost: CostKind
    metric: str | None = None
    margin_pct: float | None = None
    """In percent of the loss that the baseline ends at."""
    passed_over: tuple[PassedOver, ...] = ()

    @property
    def is_to_loss(self) -> bool:
        return self.cost in TO_LOSS.values()

    @property
    def objective(self) -> Objective:
        return "time" if self.cost in (TO_LOSS["time"], OF_STEP["time"]) else "energy"


def cost_of(kind: CostKind, pairs: Sequence[Pair], to_loss: TimeToLoss | None) -> Cost:
    if kind in OF_STEP.values():
        figures = paired_figures(pairs, STEP_MS if kind == "step time" else ENERGY_OF_SAMPLE)
        return Cost(by_pair=figures, gain=mean_ratio(figures.values()))
    if to_loss is None:
        return Cost(by_pair={}, gain=None)
    figures = to_loss.seconds if kind == "time to loss" else to_loss.joules
    gain = mean_ratio(figures.values()) if len(figures) == to_loss.n else None
    return Cost(by_pair=figures, gain=gain) if to_loss.reached else Cost(by_pair={}, gain=None, gain_at_most=gain)


def ranking(objective: Objective, arms: Mapping[str, tuple[Sequence[Pair], TimeToLoss | None]]) -> Ranking:
    """Choose the cost that ranks `arms`: that up to the loss where every arm's is known, else that of a step.

    An arm that did not reach the loss, though its run cost more than the baseline's way there, is known to cost more.
    """
    first = next((to_loss for _, to_loss in arms.values() if to_loss is not None), None)
    why: dict[PassedOverWhy, list[str]] = {}
    for arm, (pairs, to_loss) in arms.items():
        if (kind := _passed_over(TO_LOSS[objective], pairs, to_loss, first)) is not None:
            why.setdefault(kind, []).append(arm)
    if why or first is None:
        passed_over = tuple(PassedOver(why=kind, arms=tuple(of)) for kind, of in why.items())
        return Ranking(cost=OF_STEP[objective], passed_over=passed_over)
    return Ranking(cost=TO_LOSS[objective], metric=first.metric, margin_pct=first.margin_pct)


def _passed_over(
    kind: CostKind, pairs: Sequence[Pair], to_loss: TimeToLoss | None, first: TimeToLoss | None
) -> PassedOverWhy | None:
    if to_loss is None or first is None:
        return "no curves"
    if to_loss.metric != first.metric:
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


Quantity = CostKind | Literal["memory", "loss"]
QUANTITIES: Final[tuple[Quantity, ...]] = (*COST_NAMES, "memory", "loss")
ArmValues = Mapping[Quantity, Values]
"""An arm's own figures in its pairs with the baseline, the baseline's in the pairs of all arms: milliseconds of a step,
joules of a sample, seconds or joules up to the loss, bytes at the peak (of the fullest rank), final validation losses.
"""


def values_of_arms(baseline: str, arms: Mapping[str, tuple[Sequence[Pair], TimeToLoss | None]]) -> dict[str, ArmValues]:
    """The figures of the baseline and of the other `arms`, of their pairs with it and their ways to its loss."""
    of_baseline: dict[Quantity, dict[str, float]] = {of: {} for of in QUANTITIES}
    found: dict[str, ArmValues] = {baseline: of_baseline}
    for arm, (pairs, to_loss) in arms.items():
        figures: dict[Quantity, Figures] = {kind: cost_of(kind, pairs, to_loss).by_pair for kind in COST_NAMES}
        figures["memory"] = peaks_of(pairs)
        figures["loss"] = paired_figures(pairs, VAL_LOSS)
        found[arm] = {of: one_side(both, of_baseline=False) for of, both in figures.items()}
        for of, both in figures.items():
            of_baseline[of] |= one_side(both, of_baseline=True)
    return found
