"""The front of speed, memory and loss: the arms of a workload that no other beats.

An arm is beaten by another that is better in one of the three, step time, peak memory or final loss, and worse in none:
- better or worse in time or memory: by 2% or more, resolved by the pairs that both have (the 95% interval of their own
  ratio leaves out 1); in loss: the 90% interval of their own gap lies beyond the margin;
- else they count as the same, if the better one's ratio is resolved or known to within 10%, and if its loss is known
  not to be worse by the margin. Where that is not known, neither beats the other;
- what neither of them measured counts for nothing.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, Literal

from ampsweep.analysis.candidates import MAX_DOUBT
from ampsweep.analysis.pairing import Figures, Pair, one_side, paired_figures, peaks_of
from ampsweep.analysis.recommendation import MIN_DIFFERENCE
from ampsweep.analysis.runs import STEP_MS, VAL_LOSS
from ampsweep.analysis.statistics import (
    MIN_PAIRS,
    Estimate,
    Values,
    difference_between,
    geometric_mean,
    in_both,
    ratio_between,
    two_one_sided_tests,
)
from ampsweep.finding import Finding

Axis = Literal["time", "memory", "loss"]
Relation = Literal["better", "worse", "same", "open", "not measured"]

_WORSE: Final[dict[Axis, str]] = {"time": "slower", "memory": "more memory", "loss": "worse loss"}

ArmValues = Mapping[Axis, Values]
"""An arm's own figures in its pairs with the baseline, the baseline's in the pairs of all arms: milliseconds of a step,
bytes at the peak (of the fullest rank), final validation losses.
"""


@dataclass(frozen=True, kw_only=True)
class Beaten:
    by: str
    worse_in: tuple[Axis, ...]

    @property
    def text(self) -> str:
        """The beating arm, and where the beaten one is worse: 'amp_bf16 (slower and more memory)'."""
        return f"{self.by} ({' and '.join(_WORSE[axis] for axis in self.worse_in)})"


@dataclass(frozen=True, kw_only=True)
class FrontArm:
    """One arm's place, by its pairs with the baseline; the baseline's by all pairs."""

    arm: str
    step_ms: float
    """Geometric mean over pairs."""
    time_ratio: Estimate | None
    """Step time over the baseline's: below 1 is faster."""
    peak_bytes: float
    loss_gap: Estimate | None
    """Final validation loss minus the baseline's."""
    loss: Relation
    """Its final loss against the baseline's."""
    beaten: Beaten | None
    """None for an arm on the front."""


class Front(Finding):
    """The arms of a workload by step time, memory and loss, in the order of tables."""

    arms: tuple[FrontArm, ...]
    without: tuple[str, ...]
    """Arms that lack a step time or memory, and hence have no place."""

    @property
    def unbeaten(self) -> tuple[FrontArm, ...]:
        return tuple(one for one in self.arms if one.beaten is None)

    @property
    def sentence(self) -> str:
        beaten: dict[Beaten, list[str]] = {}
        for one in self.arms:
            if one.beaten is not None:
                beaten.setdefault(one.beaten, []).append(one.arm)
        told = [f"{', '.join(arms)} by {by.text}" for by, arms in beaten.items()]
        on_front = f"on the front: {', '.join(one.arm for one in self.unbeaten)}"
        return f"{on_front}; beaten: {'; '.join(told)}" if told else f"{on_front}; none is beaten"


def values_of_arms(baseline: str, pairs_of: Mapping[str, Sequence[Pair]]) -> dict[str, ArmValues]:
    """The figures of the baseline and of the other arms, of their pairs with it."""
    of_baseline: dict[Axis, dict[str, float]] = {axis: {} for axis in _WORSE}
    found: dict[str, ArmValues] = {baseline: of_baseline}
    for arm, pairs in pairs_of.items():
        figures: dict[Axis, Figures] = {
            "time": paired_figures(pairs, STEP_MS),
            "memory": peaks_of(pairs),
            "loss": paired_figures(pairs, VAL_LOSS),
        }
        found[arm] = {axis: one_side(both, of_baseline=False) for axis, both in figures.items()}
        for axis, both in figures.items():
            of_baseline[axis] |= one_side(both, of_baseline=True)
    return found


def front(values: Mapping[str, ArmValues], *, margin: float | None) -> Front | None:
    """The front of the arms with these values; None without two arms that have a place.

    Args:
        values: of the arms in the order of tables, the baseline's first.
        margin: the gap of the final loss that counts as none, in the unit of the loss; None without losses.
    """
    placed = {arm: one for arm, one in values.items() if one["time"] and one["memory"]}
    if len(placed) < 2:
        return None
    relations = {(one, other): _relations(placed[one], placed[other], margin) for one, other in permutations(placed, 2)}
    beaten = _beaten([*placed], relations)
    baseline = next(iter(values))
    return Front(
        arms=tuple(
            FrontArm(
                arm=arm,
                step_ms=geometric_mean([*one["time"].values()]),
                time_ratio=None if arm == baseline else ratio_between(one["time"], values[baseline]["time"]),
                peak_bytes=statistics.fmean(one["memory"].values()),
                loss_gap=None if arm == baseline else difference_between(one["loss"], values[baseline]["loss"]),
                loss="same" if arm == baseline else _by_gap(one["loss"], values[baseline]["loss"], margin),
                beaten=beaten.get(arm),
            )
            for arm, one in placed.items()
        ),
        without=tuple(arm for arm in values if arm not in placed),
    )


_Relations = dict[Axis, Relation]


def _relations(one: ArmValues, other: ArmValues, margin: float | None) -> _Relations:
    return {
        "time": _by_ratio(one["time"], other["time"]),
        "memory": _by_ratio(one["memory"], other["memory"]),
        "loss": _by_gap(one["loss"], other["loss"], margin),
    }


def _by_ratio(one: Values, other: Values) -> Relation:
    ratio = ratio_between(one, other)
    if ratio is None:
        return "open" if one or other else "not measured"
    if ratio.resolves(1.0) and not 1 / (1 + MIN_DIFFERENCE) < ratio.value < 1 + MIN_DIFFERENCE:
        return "better" if ratio.value < 1 else "worse"
    is_known = ratio.exact or ratio.resolves(1.0) or (ratio.high is not None and ratio.high <= MAX_DOUBT)
    return "same" if is_known else "open"


def _by_gap(one: Values, other: Values, margin: float | None) -> Relation:
    if margin is None or not (one or other):
        return "not measured"
    gaps = [mine - theirs for mine, theirs in in_both(one, other)]
    if len(gaps) < MIN_PAIRS:
        return "open"
    tested = two_one_sided_tests(gaps, margin)
    if tested.position in ("above", "below"):
        return "worse" if tested.position == "above" else "better"
    return "same" if tested.high < margin else "open"


def _beaten(arms: Sequence[str], relations: dict[tuple[str, str], _Relations]) -> dict[str, Beaten]:
    """The beaten arms, each with one that beats it: one that is unbeaten itself, and better in most."""
    beaters = {arm: [one for one in arms if one != arm and _beats(relations[one, arm])] for arm in arms}
    if all(beaters.values()):  # ties are not transitive: arms may beat each other in a circle
        return {}
    found = {}
    for arm, candidates in beaters.items():
        if candidates:
            by = min(candidates, key=lambda one: (bool(beaters[one]), -len(_better_in(relations[one, arm]))))
            found[arm] = Beaten(by=by, worse_in=_better_in(relations[by, arm]))
    return found


def _beats(of: _Relations) -> bool:
    return "better" in of.values() and not {"worse", "open"} & set(of.values())


def _better_in(of: _Relations) -> tuple[Axis, ...]:
    return tuple(axis for axis in _WORSE if of[axis] == "better")
