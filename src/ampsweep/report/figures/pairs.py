"""Kinds of panels of pairs: the effect of an arm in each of its pairs, and the Pareto front of all arms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.costs import COST_NAMES, CostKind
from ampsweep.analysis.front import Front, FrontArm, Relation
from ampsweep.analysis.judgements import Parity
from ampsweep.analysis.runs import PEAK_MEMORY, STEP_MS, VAL_LOSS
from ampsweep.analysis.statistics import Estimate, mean_difference, mean_ratio, saved_pct
from ampsweep.report.figure import Figure, Json, NoFigure, axis, margin, row_axis, rule, scatter, whiskers
from ampsweep.report.figures.drawing import (
    Remarks,
    Style,
    arms_table,
    axis_title,
    dots,
    metric_name,
    panel_figure,
    rows_height,
)
from ampsweep.report.panels import Effect, Panel
from ampsweep.report.tables import Cell, Column, Table, axis_unit, count_cell, estimate_cell, quantity
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import GIB, duration, milliseconds, num_bytes, number, ratio


class _EffectOf(NamedTuple):
    """A figure of a pair: its value where there is no effect, how it is computed, and what it is called."""

    null: float
    of_pair: Callable[[float, float], float]
    title: str


EFFECTS: Final[dict[Effect, _EffectOf]] = {
    "ratio": _EffectOf(1.0, lambda baseline, arm: baseline / arm, ", baseline over arm"),
    "saved": _EffectOf(0.0, lambda baseline, arm: baseline - arm, ", baseline minus arm"),
    "saved_pct": _EffectOf(0.0, saved_pct, " saved"),
    "gap": _EffectOf(0.0, lambda baseline, arm: arm - baseline, ", arm minus baseline"),
}
_OF_COMPARISON: Final[dict[tuple[str, Effect], Callable[[ArmComparison], Estimate | None]]] = {
    (STEP_MS, "ratio"): lambda arm: arm.speedup,
    (PEAK_MEMORY, "saved"): lambda arm: (of := arm.memory_saved_bytes) and of.mapped(lambda size: size / GIB),
    (PEAK_MEMORY, "saved_pct"): lambda arm: arm.memory_saved_pct,
    (VAL_LOSS, "gap"): lambda arm: arm.loss_gap,
}
"""The means that every other figure of the comparison shows, too."""


@dataclass(frozen=True)
class Effects:
    """One arm's effect in each of its pairs, and their mean."""

    arm: str
    by_seed: Sequence[tuple[int, float]]
    mean: Estimate


def effects(panel: Panel, data: WorkloadData, arm: str) -> Effects | None:
    """The effects on the panel's metric; None of an arm without a pair that measured it."""
    (key,) = panel.metrics
    if (judged := data.verdict_on(arm)) is None:
        return None
    pairs = sorted(judged.pairs, key=lambda pair: pair.arm_runs[0].seed)
    found = [(pair.arm_runs[0].seed, both) for pair in pairs if (both := pair.figures(key))]
    if panel.effect in ("ratio", "saved_pct"):  # neither is of nothing
        found = [(seed, both) for seed, both in found if both[0] > 0 and (panel.effect == "saved_pct" or both[1] > 0)]
    by_seed = [(seed, EFFECTS[panel.effect].of_pair(*both)) for seed, both in found]
    if (of_comparison := _OF_COMPARISON.get((key, panel.effect))) is not None:
        mean = of_comparison(judged.judgements.figures)
    elif panel.effect == "ratio":
        mean = mean_ratio([both for _, both in found])
    else:
        mean = mean_difference([one for _, one in by_seed])
    return None if mean is None else Effects(arm, by_seed, mean)


def effect_title(panel: Panel, unit: str) -> str:
    """Title of the effect's axis."""
    return axis_title(f"{metric_name(panel)}{EFFECTS[panel.effect].title}", unit)


def effect_unit(panel: Panel) -> str:
    return {"ratio": "x", "saved_pct": "%"}.get(panel.effect, panel.unit)


def effect_text(effect: float, panel: Panel) -> str:
    """One effect with its unit."""
    if panel.effect == "ratio":
        return ratio(effect)
    return quantity(effect, effect_unit(panel), sign=panel.effect == "gap")


def mean_cell(of: Estimate, panel: Panel) -> Cell:
    """The mean with its interval, both in the digits that the interval asks for."""
    if panel.effect == "ratio" or effect_unit(panel) == "":
        return estimate_cell(of, "ratio" if panel.effect == "ratio" else "difference")
    ends = "exact" if of.exact else ""
    if not of.exact and of.interval is not None:
        ends = f"[{', '.join(effect_text(end, panel) for end in of.interval)}]"
    return Cell(effect_text(of.value, panel), of.value, of.low, of.high, ends)


def pairs(panel: Panel, data: WorkloadData, style: Style) -> Figure | NoFigure:
    """An arm a row: a dot a pair, a diamond at their mean with its 95% interval, a line where there is no effect."""
    others = [one.arm for one in data.arms if not one.is_baseline]
    found = [of_arm for arm in others if (of_arm := effects(panel, data, arm)) is not None]
    if not found:
        return NoFigure(f"no arm has a pair of runs with the baseline that measured {panel.metrics[0]}")
    remarks = Remarks()
    shown = {one.arm for one in found}
    remarks.without([arm for arm in data.measured_arms if arm in others and arm not in shown], "no pair to compare")
    remarks.of_dots(max(len(one.by_seed) for one in found), style)
    unit = axis_unit((effect for one in found for _, effect in one.by_seed), effect_unit(panel))
    parities = [_parity(panel, data, one.arm) for one in found]
    traces = [_decisive(one.arm, parity, style) for one, parity in zip(found, parities, strict=True) if parity]
    for one in found:  # dots over intervals
        text = partial(effect_text, panel=panel)
        traces += [_mean(one, panel, unit.factor, style), dots(one.arm, one.by_seed, unit.factor, text, style)]
    held = [Column("margin", numeric=True), Column("gap (90% interval)", numeric=True), Column("parity")]
    columns: list[Column | str] = ["mean", "pairs", *(held if any(parities) else [])]
    rows = {
        one.arm: [mean_cell(one.mean, panel), count_cell(one.mean.n), *_held(parity)][: len(columns)]
        for one, parity in zip(found, parities, strict=True)
    }
    return panel_figure(
        panel,
        remarks,
        traces=traces,
        x=axis(effect_title(panel, unit.unit)),
        y=row_axis([one.arm for one in found]),
        shapes=[
            rule(EFFECTS[panel.effect].null),
            *(margin(row, -one.margin, one.margin) for row, one in enumerate(parities) if one is not None),
        ],
        height=rows_height(len(found)),
        table=arms_table(panel, columns, rows),
    )


def _mean(of: Effects, panel: Panel, factor: float, style: Style) -> Json:
    """A diamond, hollow so that it hides no dot, with its interval."""
    colour, mean, cell = style.arms[of.arm].colour, of.mean, mean_cell(of.mean, panel)
    x = [mean.value * factor]
    ends = [] if mean.interval is None else [(mean.interval[0] * factor, mean.interval[1] * factor)]
    return scatter(
        of.arm,
        x,
        [of.arm],
        colour,
        symbol="diamond-tall",
        hollow=True,
        size=22,
        hover=[f"mean {cell.text} {cell.detail}".strip()],
        meta={"arm": of.arm, "over_seeds": True},
        **whiskers("x", x, ends, colour),
    )


def _parity(panel: Panel, data: WorkloadData, arm: str) -> Parity | None:
    verdict = data.verdict_on(arm)
    return (
        next((one for one in verdict.judgements.parities if one.metric == panel.metrics[0]), None) if verdict else None
    )


def _decisive(arm: str, of: Parity, style: Style) -> Json:
    """The interval that decides parity, thick over the thin one."""
    ends = [end for end in (of.low, of.high) if end is not None]
    meta = {"arm": arm, "over_seeds": True}
    return scatter("", ends, [arm] * len(ends), style.arms[arm].colour, line=7, opacity=0.6, meta=meta)


def _held(of: Parity | None) -> tuple[Cell, Cell, Cell]:
    """The margin, the 90% interval that decides parity, and the verdict."""
    if of is None:
        return Cell(), Cell(), Cell()
    is_exact = of.low is not None and of.low == of.high
    low, high = (None, None) if of.low == of.high else (of.low, of.high)
    gap = Estimate(value=of.gap, n=of.n, low=low, high=high, exact=is_exact)
    return Cell(f"±{number(of.margin, 2)}", of.margin), estimate_cell(gap, "difference"), Cell(of.verdict)


_SYMBOLS: Final[dict[Relation, str]] = {
    "same": "circle",
    "worse": "triangle-up",
    "better": "triangle-down",
    "open": "diamond",
    "not measured": "square",
}
"""The marker of a final loss against the baseline's."""
_COST_UNITS: Final[dict[CostKind, str]] = {
    "time to loss": "s",
    "energy to loss": "J",
    "step time": "ms",
    "energy of a sample": "J",
}


def front(panel: Panel, data: WorkloadData, style: Style) -> Figure | NoFigure:
    """An arm a marker: cost to the right, peak memory up, the final loss by its symbol, hollow where it is beaten."""
    of = data.compared.verdict.front
    if of is None:
        return NoFigure("fewer than two arms have a speed and a peak memory in their pairs with the baseline")
    limit = data.compared.verdict.recommendation.goal.memory_bytes
    unit = axis_unit([one.peak_bytes / GIB for one in of.arms], "GiB")
    points = {one.arm: (one.cost, one.peak_bytes / GIB * unit.factor) for one in of.arms}
    remarks = Remarks()
    remarks.without(of.without, f"no {COST_NAMES[of.cost]} or no peak memory")
    if limit is not None:
        remarks.clauses.append(f"the dotted line is the memory given, {num_bytes(limit)}")
    return panel_figure(
        panel,
        remarks,
        traces=[_through(of, points), *(_marker(one, points[one.arm], of, style) for one in of.arms)],
        x=axis(axis_title(COST_NAMES[of.cost], _COST_UNITS[of.cost])),
        y=axis(axis_title("peak memory", unit.unit)),
        shapes=[] if limit is None else [rule(limit / GIB * unit.factor, "y")],
        height=420,
        legend=True,
        table=_front_table(panel, of),
    )


def _marker(one: FrontArm, point: tuple[float, float], of: Front, style: Style) -> Json:
    ratio_ends = None if one.cost_ratio is None else one.cost_ratio.interval
    scale = 1.0 if one.cost_ratio is None else one.cost / one.cost_ratio.value
    ends = [] if ratio_ends is None else [(ratio_ends[0] * scale, ratio_ends[1] * scale)]
    colour = style.arms[one.arm].colour
    return scatter(
        one.arm,
        [point[0]],
        [point[1]],
        colour,
        symbol=_SYMBOLS[one.loss],
        size=15,
        hollow=one.beaten is not None,
        edge=1.5,
        hover=["; ".join([_cost(one.cost, of.cost), num_bytes(one.peak_bytes), _place(one, of)])],
        meta={"arm": one.arm, "over_seeds": True},
        **whiskers("x", [point[0]], ends, colour),
    )


def _through(of: Front, points: dict[str, tuple[float, float]]) -> Json:
    """The line through the arms of the front whose loss is not worse, as far as none of them beats them otherwise."""
    on_front = sorted((points[one.arm], one.arm) for one in of.unbeaten if one.loss != "worse")
    line: list[tuple[tuple[float, float], str]] = []
    for point, arm in on_front:
        if not line or point[1] < line[-1][0][1]:
            line.append((point, arm))
    x, y = [point[0] for point, _ in line], [point[1] for point, _ in line]
    meta = {"arms": [arm for _, arm in line], "over_seeds": True}
    return scatter("", x, y, "#888888", line=1.5, dash="dash", showlegend=False, meta=meta)


def _front_table(panel: Panel, of: Front) -> Table:
    columns = (
        COST_NAMES[of.cost],
        Column("over the baseline's", "cost_ratio", numeric=True),
        Column("peak memory", "peak_bytes", numeric=True),
        Column("loss gap", "loss_gap", numeric=True),
        Column("loss"),
        Column("front"),
    )
    rows = {
        one.arm: [
            Cell(_cost(one.cost, of.cost), one.cost),
            estimate_cell(one.cost_ratio, "ratio"),
            Cell(num_bytes(one.peak_bytes), one.peak_bytes),
            estimate_cell(one.loss_gap, "difference"),
            Cell(one.loss),
            Cell(_place(one, of)),
        ]
        for one in of.arms
    }
    return arms_table(panel, columns, rows)


def _place(one: FrontArm, of: Front) -> str:
    return "on the front" if one.beaten is None else f"beaten by {one.beaten.text(of.cost)}"


def _cost(value: float, kind: CostKind) -> str:
    if kind == "step time":
        return milliseconds(value)
    return duration(value) if kind == "time to loss" else f"{number(value)} J"
