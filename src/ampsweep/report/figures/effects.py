"""The effect of an arm on a metric in each of its pairs with the baseline, their mean, and both as texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.statistics import Estimate, mean_difference, mean_ratio
from ampsweep.report.estimate_text import estimate, ratio_estimate
from ampsweep.report.figures.figure import axis_title
from ampsweep.report.panels import Effect, Panel
from ampsweep.report.units import quantity
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import ratio

NULL: Final[dict[Effect, float]] = {"ratio": 1.0, "saved": 0.0, "saved_pct": 0.0, "gap": 0.0}
"""The value of an effect where there is none."""


@dataclass(frozen=True)
class Effects:
    """One arm's effect in each of its pairs, in `effect_unit`, and their mean."""

    arm: str
    by_seed: Sequence[tuple[int, float]]
    mean: Estimate


def effects(panel: Panel, data: WorkloadData, arm: str) -> Effects | None:
    """The effects on the panel's metric; None of an arm without a pair that measured it."""
    (key,) = panel.metrics
    figures = [(pair.arm_runs[0].seed, both) for pair in data.pairs_of(arm) if (both := _figures(pair, key))]
    if panel.effect == "ratio":
        figures = [(seed, both) for seed, both in figures if min(both) > 0]
    if panel.effect == "saved_pct":
        figures = [(seed, both) for seed, both in figures if both[0] > 0]
    if not figures:
        return None
    by_seed = [(seed, _effect(panel.effect, *both)) for seed, both in figures]
    mean = (
        mean_ratio([both for _, both in figures])
        if panel.effect == "ratio"
        else mean_difference([effect for _, effect in by_seed])
    )
    return Effects(arm, by_seed, mean)


def effect_unit(panel: Panel) -> str:
    """The unit of the effect."""
    return {"ratio": "x", "saved_pct": "%"}.get(panel.effect, panel.unit)


def effect_title(panel: Panel, unit: str) -> str:
    """Title of the effect's axis."""
    of: dict[Effect, str] = {
        "ratio": ", baseline over arm",
        "saved": ", baseline minus arm",
        "saved_pct": " saved",
        "gap": ", arm minus baseline",
    }
    return f"{axis_title(panel, '')}{of[panel.effect]}" + (f" ({unit})" if unit else "")


def effect_text(effect: float, panel: Panel) -> str:
    """One effect with its unit."""
    if panel.effect == "ratio":
        return ratio(effect)
    return quantity(effect, effect_unit(panel), sign=panel.effect == "gap")


def mean_text(of: Estimate, panel: Panel) -> str:
    """The mean in the digits of its interval."""
    if panel.effect == "ratio":
        return f"{ratio_estimate(of)[0]}x"
    return estimate(of, digits=2, sign=True)[0] if effect_unit(panel) == "" else effect_text(of.value, panel)


def interval_text(of: Estimate, panel: Panel) -> str:
    """The interval; `exact` where all effects are the same, empty where there is none."""
    if of.interval is None:
        return "exact" if of.exact else ""
    if panel.effect == "ratio" or effect_unit(panel) == "":
        _, ends = ratio_estimate(of) if panel.effect == "ratio" else estimate(of, digits=2, sign=True)
        assert ends is not None
        return f"[{ends[0]}, {ends[1]}]"
    return f"[{', '.join(effect_text(end, panel) for end in of.interval)}]"


def _figures(pair: Pair, key: str) -> tuple[float, float] | None:
    """The pair's figures as the comparison takes them: time of undisturbed runs, losses of finished ones."""
    if key.startswith("perf/"):
        return pair.speed_figures(key)
    return pair.final_figures(key) if key.startswith(("train/", "val/")) else pair.figures(key)


def _effect(effect: Effect, baseline: float, arm: float) -> float:
    match effect:
        case "ratio":
            return baseline / arm
        case "saved":
            return baseline - arm
        case "saved_pct":
            return 100 * (baseline - arm) / baseline
        case "gap":
            return arm - baseline
