"""Panels of pairs: the effect of an arm in each of its pairs, and the Pareto front of all arms."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate
from ampsweep.analysis.figure_keys import PEAK_MEMORY, VAL_LOSS
from ampsweep.analysis.judgements import Parity
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.pareto_front import FrontArm, Relation
from ampsweep.analysis.runs import STEP_MS
from ampsweep.analysis.statistics import Estimate, saved_pct
from ampsweep.report.figure import Figure, Json, axis, margin, row_axis, rule, scatter, whiskers
from ampsweep.report.figures.drawing import arms_table, dots, dots_left_out, panel_figure, rows_height, without
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import Effect, Panel
from ampsweep.report.tables import (
    Cell,
    Column,
    axis_unit,
    count_cell,
    estimate_cell,
    quantity,
    table_of,
    text_column,
    value_cell,
    value_column,
)
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import GIB, milliseconds, num_bytes, number, ratio, signed


class EffectOf(NamedTuple):
    """An effect of an arm, as a mean in the comparison and for a single pair."""

    metric: str
    of_pair: Callable[[float, float], float]  # from the baseline's value and the arm's
    mean: Callable[[ArmComparison], Estimate | None]
    null: float  # the value of no effect
    title: str
    unit: str

    def text(self, value: float) -> str:
        if self.unit == "x":
            return ratio(value)
        return quantity(value, self.unit) if self.unit else signed(value)


_EFFECTS: Final[dict[Effect, EffectOf]] = {
    "speedup": EffectOf(
        STEP_MS, lambda base, arm: base / arm, lambda arm: arm.speedup, 1.0, "step time, baseline over arm", "x"
    ),
    "memory_saved": EffectOf(
        PEAK_MEMORY,
        lambda base, arm: base - arm,
        lambda arm: arm.memory_saved_bytes and arm.memory_saved_bytes.mapped(lambda size: size / GIB),
        0.0,
        "peak allocated, baseline minus arm",
        "GiB",
    ),
    "memory_saved_pct": EffectOf(
        PEAK_MEMORY, saved_pct, lambda arm: arm.memory_saved_pct, 0.0, "peak allocated saved", "%"
    ),
    "loss_gap": EffectOf(
        VAL_LOSS, lambda base, arm: arm - base, lambda arm: arm.loss_gap, 0.0, "validation loss, arm minus baseline", ""
    ),
}


def effect_of(panel: Panel) -> EffectOf:
    assert panel.effect is not None, panel.key
    of = _EFFECTS[panel.effect]
    return of._replace(title=panel.keys.named(of.title))


def _by_seed(of: EffectOf, pairs: Sequence[Pair]) -> list[tuple[int, float]]:
    pairs = sorted(pairs, key=lambda pair: pair.arm_runs[0].seed)
    found = [(pair.arm_runs[0].seed, both) for pair in pairs if (both := pair.figures(of.metric))]
    if of.unit in ("x", "%"):  # neither has a value for zero
        found = [(seed, both) for seed, both in found if min(both) > 0]
    return [(seed, of.of_pair(*both)) for seed, both in found]


def mean_cell(mean: Estimate, of: EffectOf) -> Cell:
    """The mean with its interval, both in as many digits as the interval justifies."""
    if of.unit in ("x", ""):
        return estimate_cell(mean, "ratio" if of.unit == "x" else "difference")
    ends = "exact" if mean.exact else ""
    if not mean.exact and mean.interval is not None:
        ends = f"[{', '.join(map(of.text, mean.interval))}]"
    return Cell(of.text(mean.value), mean.value, mean.low, mean.high, ends)


def pairs(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A row for each arm: a dot for each pair, a diamond at their mean with its 95% interval, a line at no effect."""
    of, arms = effect_of(panel), data.compared.verdict.arms
    means = {arm.arm: mean for arm in arms if (mean := of.mean(arm.judgements.figures)) is not None}
    if not means:
        return None
    parities = {arm.arm: parity_of(panel, arm) for arm in arms if arm.arm in means}
    by_seed = {arm.arm: _by_seed(of, arm.pairs) for arm in arms if arm.arm in means}
    missing = [arm.arm for arm in arms if arm.arm in data.measured_arms and arm.arm not in means]
    unit = axis_unit((value for values in by_seed.values() for _, value in values), of.unit)
    traces = [_decisive(arm, parity, styles) for arm, parity in parities.items() if parity]
    for arm, mean in means.items():  # dots over intervals
        look = styles[arm]
        traces += [_mean(arm, mean, of, unit.factor, look), dots(arm, by_seed[arm], unit.factor, of.text, look)]
    of_parity = [Column("margin", numeric=True), Column("gap (90% interval)", numeric=True), Column("parity")]
    columns: list[Column | str] = ["mean", "pairs", *(of_parity if any(parities.values()) else [])]
    rows = {
        arm: [mean_cell(mean, of), count_cell(mean.n), *_parity_cells(parities[arm])][: len(columns)]
        for arm, mean in means.items()
    }
    return panel_figure(
        panel,
        [*without(missing, "no pair to compare"), *dots_left_out(max(map(len, by_seed.values())))],
        traces=traces,
        x=axis(of.title, unit.unit),
        y=row_axis([*parities]),
        shapes=[
            rule(of.null),
            *(margin(-parity.margin, parity.margin, row) for row, parity in enumerate(parities.values()) if parity),
        ],
        height=rows_height(len(means)),
        table=arms_table(panel, columns, rows),
    )


def _mean(arm: str, mean: Estimate, of: EffectOf, factor: float, look: ArmStyle) -> Json:
    """A diamond, hollow so that it hides no dot, with its interval."""
    x, cell = [mean.value * factor], mean_cell(mean, of)
    ends = [] if mean.interval is None else [(mean.interval[0] * factor, mean.interval[1] * factor)]
    return scatter(
        arm,
        x,
        [arm],
        look.colour,
        symbol="diamond-tall",
        hollow=True,
        size=22,
        hover=[f"mean {cell.text} {cell.detail}".strip()],
        meta={"arm": arm},
        **whiskers("x", x, ends, look.colour),
    )


def parity_of(panel: Panel, of: Candidate) -> Parity | None:
    metric = panel.keys.recorded(panel.metrics[0])
    return next((parity for parity in of.judgements.parities if parity.metric == metric), None)


def _decisive(arm: str, of: Parity, styles: Mapping[str, ArmStyle]) -> Json:
    ends = [end for end in (of.low, of.high) if end is not None]
    return scatter("", ends, [arm] * len(ends), styles[arm].colour, line=7, opacity=0.6, meta={"arm": arm})


def _parity_cells(of: Parity | None) -> tuple[Cell, Cell, Cell]:
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
"""Markers of a final loss relative to the baseline's."""


def front(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A marker for each arm at its step time (x) and peak memory (y); its symbol shows the loss, hollow is beaten."""
    of = data.compared.verdict.front
    if of is None:
        return None
    limit_gib = data.compared.verdict.recommendation.memory_gib
    unit = axis_unit([arm.peak_bytes / GIB for arm in of.arms], "GiB")
    remarks = without(of.without, "no step time or no peak memory")
    if limit_gib is not None:
        remarks.append(f"the dotted line is the memory given, {num_bytes(limit_gib * GIB)}")
    return panel_figure(
        panel,
        remarks,
        traces=[
            scatter(
                arm.arm,
                [arm.step_ms],
                [arm.peak_bytes / GIB * unit.factor],
                styles[arm.arm].colour,
                symbol=_SYMBOLS[arm.loss],
                size=15,
                hollow=arm.beaten is not None,
                edge=1.5,
                hover=["; ".join([milliseconds(arm.step_ms), num_bytes(arm.peak_bytes), _place(arm)])],
                meta={"arm": arm.arm},
            )
            for arm in of.arms
        ],
        x=axis("step time", "ms"),
        y=axis(panel.keys.memory_words, unit.unit),
        shapes=[] if limit_gib is None else [rule(limit_gib * unit.factor, "y")],
        height=420,
        legend=True,
        table=table_of(
            panel.key,
            (
                text_column("arm", lambda arm: arm.arm),
                (Column("step time", numeric=True), lambda arm: value_cell(arm.step_ms, milliseconds)),
                value_column(panel.keys.memory_words, "peak_bytes", num_bytes),
                text_column(panel.keys.metric_words, lambda arm: arm.loss),
                text_column("front", _place),
            ),
            of.arms,
            lambda arm: arm.arm,
        ),
    )


def _place(arm: FrontArm) -> str:
    return "on the front" if arm.beaten is None else f"beaten by {arm.beaten.text}"
