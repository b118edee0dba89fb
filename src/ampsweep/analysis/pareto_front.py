"""The Pareto front of the arms of a workload over step time, peak memory and final loss.

An arm is beaten by another that is better on one axis, and on the others the same: by a ratio that is resolved or known
to within 10%, or a loss known not to be worse by the margin. An axis that neither arm measured does not count.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, Literal

from ampsweep.analysis.candidates import MAX_DOUBT
from ampsweep.analysis.figure_keys import PEAK_MEMORY, VAL_LOSS
from ampsweep.analysis.pairing import Pair, one_side, paired_figures
from ampsweep.analysis.recommendation import MIN_DIFFERENCE
from ampsweep.analysis.runs import STEP_MS
from ampsweep.analysis.statistics import (
    MIN_PAIRS,
    Estimate,
    Values,
    geometric_mean,
    in_both,
    mean_difference,
    ratio_between,
    two_one_sided_tests,
)
from ampsweep.finding import Finding
from ampsweep.text import GIB

Axis = Literal["time", "memory", "loss"]
Relation = Literal["better", "worse", "same", "open", "not measured"]
_Relations = dict[Axis, Relation]

_METRICS: Final[dict[Axis, str]] = {"time": STEP_MS, "memory": PEAK_MEMORY, "loss": VAL_LOSS}
_WORSE: Final[dict[Axis, str]] = {"time": "slower", "memory": "more memory", "loss": "worse loss"}

ArmValues = Mapping[Axis, Values]
"""By axis, an arm's figures in its pairs with the baseline, the baseline's in all pairs: ms of a step, GiB at the peak
(of the fullest rank), final validation losses."""


@dataclass(frozen=True, kw_only=True)
class Beaten:
    by: str
    worse_in: tuple[Axis, ...]

    @property
    def text(self) -> str:
        return f"{self.by} ({' and '.join(_WORSE[axis] for axis in self.worse_in)})"


@dataclass(frozen=True, kw_only=True)
class FrontArm:
    """An arm's figures over its pairs with the baseline; the baseline's over all pairs."""

    arm: str
    step_ms: float  # geometric mean
    time_ratio: Estimate | None  # step time over the baseline's: below 1 is faster
    peak_bytes: float
    loss_gap: Estimate | None  # final validation loss minus the baseline's
    loss: Relation  # its final loss against the baseline's
    beaten: Beaten | None  # None on the front


class Front(Finding):
    arms: tuple[FrontArm, ...]
    without: tuple[str, ...]  # arms without step time or memory

    @property
    def sentence(self) -> str:
        beaten: dict[Beaten, list[str]] = {}
        for arm in self.arms:
            if arm.beaten is not None:
                beaten.setdefault(arm.beaten, []).append(arm.arm)
        on_front = f"on the front: {', '.join(arm.arm for arm in self.arms if arm.beaten is None)}"
        rest = "; ".join(f"{', '.join(arms)} by {by.text}" for by, arms in beaten.items())
        return f"{on_front}; beaten: {rest}" if rest else f"{on_front}; none is beaten"


def values_of_arms(baseline: str, pairs_of: Mapping[str, Sequence[Pair]]) -> dict[str, ArmValues]:
    of_baseline: dict[Axis, dict[str, float]] = {axis: {} for axis in _METRICS}
    found: dict[str, ArmValues] = {baseline: of_baseline}
    for arm, pairs in pairs_of.items():
        figures = {axis: paired_figures(pairs, key) for axis, key in _METRICS.items()}
        found[arm] = {axis: one_side(both, of_baseline=False) for axis, both in figures.items()}
        for axis, both in figures.items():
            of_baseline[axis] |= one_side(both, of_baseline=True)
    return found


def front(values: Mapping[str, ArmValues], *, margin: float | None, is_higher_better: bool = False) -> Front | None:
    """Place the arms (the baseline first) on the Pareto front; None unless two arms have step time and memory. `margin`
    is the largest loss gap that counts as none; None without losses."""
    placed = {arm: own for arm, own in values.items() if own["time"] and own["memory"]}
    if len(placed) < 2:
        return None

    def relation(arm: str, other: str, axis: Axis) -> Relation:
        both = values[arm][axis], values[other][axis]
        return _by_gap(*both, margin, is_higher_better) if axis == "loss" else _by_ratio(*both)

    pairs = permutations(placed, 2)
    beaten = _beaten([*placed], {pair: {axis: relation(*pair, axis) for axis in _METRICS} for pair in pairs})
    baseline, reference = next(iter(values.items()))
    return Front(
        arms=tuple(
            FrontArm(
                arm=arm,
                step_ms=geometric_mean([*own["time"].values()]),
                time_ratio=None if arm == baseline else ratio_between(own["time"], reference["time"]),
                peak_bytes=GIB * statistics.fmean(own["memory"].values()),
                loss_gap=None if arm == baseline else mean_difference(_gaps(own["loss"], reference["loss"])),
                loss="same" if arm == baseline else relation(arm, baseline, "loss"),
                beaten=beaten.get(arm),
            )
            for arm, own in placed.items()
        ),
        without=tuple(arm for arm in values if arm not in placed),
    )


def _gaps(own: Values, other: Values) -> list[float]:
    return [value - reference for value, reference in in_both(own, other)]


def _by_ratio(own: Values, other: Values) -> Relation:
    ratio = ratio_between(own, other)
    if ratio is None:
        return "open"
    if ratio.resolves(1.0) and not 1 / (1 + MIN_DIFFERENCE) < ratio.value < 1 + MIN_DIFFERENCE:
        return "better" if ratio.value < 1 else "worse"
    is_known = ratio.exact or ratio.resolves(1.0) or (ratio.high is not None and ratio.high <= MAX_DOUBT)
    return "same" if is_known else "open"


def _by_gap(own: Values, other: Values, margin: float | None, is_higher_better: bool) -> Relation:
    if margin is None or not (own or other):
        return "not measured"
    gaps = _gaps(other, own) if is_higher_better else _gaps(own, other)
    if len(gaps) < MIN_PAIRS:
        return "open"
    tested = two_one_sided_tests(gaps, margin)
    if tested.position in ("above", "below"):
        return "worse" if tested.position == "above" else "better"
    return "same" if tested.high < margin else "open"


def _beaten(arms: Sequence[str], relations: dict[tuple[str, str], _Relations]) -> dict[str, Beaten]:
    """Beaten arms, each with an arm that beats it: preferably an unbeaten arm, and the one better on most axes."""
    beaters: dict[str, list[str]] = {arm: [] for arm in arms}
    for (other, arm), axes in relations.items():
        if "better" in axes.values() and not {"worse", "open"} & set(axes.values()):
            beaters[arm].append(other)
    if all(beaters.values()):  # ties are not transitive: arms may beat each other in a circle
        return {}
    found = {}
    for arm, candidates in beaters.items():
        if candidates:
            by = min(candidates, key=lambda other: (bool(beaters[other]), -len(_better_in(relations[other, arm]))))
            found[arm] = Beaten(by=by, worse_in=_better_in(relations[by, arm]))
    return found


def _better_in(of: _Relations) -> tuple[Axis, ...]:
    return tuple(axis for axis in _WORSE if of[axis] == "better")
