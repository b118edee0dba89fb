"""Kinds of panels with lines: a metric over the steps, and a metric or its effect over a swept value."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ampsweep.analysis.runs import Run, Scalar
from ampsweep.analysis.swept import Series, value_text
from ampsweep.metrics import METRICS
from ampsweep.report.figure import Figure, Json, NoFigure, area, axis, label, rule, scatter, whiskers
from ampsweep.report.figures.drawing import Remarks, Style, arms_table, axis_title, metric_name, panel_figure
from ampsweep.report.figures.pairs import EFFECTS, effect_title, effect_unit, effects, mean_cell
from ampsweep.report.histories import Curve, band, short_numbers
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, Row, Table, axis_unit, count_cell, quantity_cell
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import seeds_text

MAX_LINES: Final = 8
"""An arm with more runs shows their band alone, and a single run's line when its seed is chosen."""
_MIN_TICK_DISTANCE: Final = 0.07
"""Share of the axis within which labels of values would cover each other: they are one label then."""
_ARMS_WIDTH: Final = 0.5
"""Share of the distance between two words that the points of all arms take."""


def curves(panel: Panel, data: WorkloadData, style: Style) -> Figure | NoFigure:
    """Each run a thin line; for an arm with several finished runs their mean, in the band from lowest to highest."""
    (key,) = panel.metrics
    remarks, traces, absent = Remarks(), list[Json](), []
    rows: dict[str, list[Cell]] = {}
    longest, is_all = 0, True
    for arm in (one.arm for one in data.arms):
        drawn = [(run, curve) for run in data.runs_of(arm) if (curve := data.curve_of(run, key)) is not None]
        finite = [(run, curve) for run, curve in drawn if np.isfinite(curve.values).any()]
        if not drawn:
            absent += [arm] if arm in data.measured_arms else []
            continue
        if left := [run.seed for run, curve in drawn if not np.isfinite(curve.values).any()]:
            remarks.clauses.append(f"{arm}: never a finite value ({seeds_text(sorted(left))})")
        longest = max(longest, *(len(curve) for _, curve in drawn))
        traces += (of_band := _band(arm, finite, data.histories.partial, style))
        alone = _alone(finite, style, has_band=bool(of_band))
        is_all = is_all and len(alone) == len(finite)
        traces += _runs(alone, style, has_band=bool(of_band), is_crowded=len(finite) > MAX_LINES)
        if finite:
            rows[arm] = _cells([curve for _, curve in finite], panel.unit)
    if not any(len(trace["x"]) > 1 for trace in traces):
        if traces:
            return NoFigure(f"{key} was logged once a run: no curve")
        return NoFigure(f"no run logged {key} ({METRICS[key].meaning if key in METRICS else key})")
    remarks.without(absent, "not logged")
    if not is_all:
        remarks.clauses.append("single runs are drawn of the seeds that can be chosen; bands and figures are of all")
    if longest > style.extent.max_points:
        remarks.clauses.append(
            f"curves of up to {longest} logged steps are thinned to {style.extent.max_points} points: the lowest and "
            "the highest value of each stretch"
        )
    return panel_figure(
        panel,
        remarks,
        traces=traces,
        x=axis("step"),
        y=axis(axis_title(metric_name(panel), panel.unit), log=panel.log),
        legend=True,
        table=arms_table(panel, ("last value", "lowest", "highest", "runs"), rows),
    )


def _band(arm: str, drawn: Sequence[tuple[Run, Curve]], partial: Collection[Path], style: Style) -> list[Json]:
    """The band of the finished runs, and their mean; nothing of a single run."""
    whole = band([curve for run, curve in drawn if run.finished and run.directory not in partial])
    if whole is None:
        return []
    look, thinned = style.arms[arm], whole.thinned(style.extent.max_points)
    steps, low, mean, high = map(short_numbers, (thinned.steps, thinned.low, thinned.mean, thinned.high))
    meta, width = {"arm": arm, "over_seeds": True}, 2 + 0.8 * look.beneath
    line = scatter(arm, steps, mean, look.colour, line=width, dash=look.dash, legendgroup=arm, meta=meta)
    return [*area(steps, low, high, look.colour, legendgroup=arm, meta=meta), line]


def _runs(alone: Sequence[tuple[Run, Curve]], style: Style, *, has_band: bool, is_crowded: bool) -> Iterator[Json]:
    for index, (run, curve) in enumerate(alone):
        look, shown = style.arms[run.arm], curve.thinned(style.extent.max_points)
        is_first = not has_band and index == 0
        pointed_at = f"{run.arm}, seed {run.seed}" + ("" if run.finished else f", {run.outcome}")
        yield scatter(
            run.arm,  # of all runs: the legend names an arm by one of them
            short_numbers(shown.steps),
            short_numbers(shown.values),
            look.colour,
            line=1.2,
            dash=look.dash if run.finished else "dot",
            symbol=look.symbol if len(shown) == 1 else "",
            opacity=0.9 if is_first or not run.finished else 0.45,
            hovertemplate=f"%{{x}}, %{{y}}<extra>{label(pointed_at)}</extra>",
            showlegend=is_first,
            legendgroup=run.arm,
            meta={"arm": run.arm, "seed": run.seed}
            | ({"only_alone": True} if has_band and is_crowded and run.finished else {}),
        )


def _alone(drawn: Sequence[tuple[Run, Curve]], style: Style, *, has_band: bool) -> list[tuple[Run, Curve]]:
    """The runs with a line of their own: of the seeds that can be chosen, and some that are in no band."""
    not_in_band = [run for run, _ in drawn if not (has_band and run.finished)][:MAX_LINES]
    kept = {run.directory for run in not_in_band}
    return [(run, curve) for run, curve in drawn if style.extent.has(run.seed) or run.directory in kept]


def _cells(of: Sequence[Curve], unit: str) -> list[Cell]:
    """The curves in figures: the median of the runs' last finite values, the ends of all values, and their number."""
    finite = [curve.values[np.isfinite(curve.values)] for curve in of]
    last = float(np.median([values[-1] for values in finite]))
    ends = min(float(values.min()) for values in finite), max(float(values.max()) for values in finite)
    return [*(quantity_cell(figure, unit) for figure in (last, *ends)), count_cell(len(of))]


@dataclass(frozen=True)
class SeriesData:
    """A series of workloads with their data, in the same order."""

    series: Series
    data: tuple[WorkloadData, ...]

    @property
    def compared(self) -> list[tuple[Scalar, WorkloadData]]:
        return list(zip(self.series.values, self.data, strict=True))

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm for data in self.data for arm in data.names))

    def place(self, arm: str, value: Scalar) -> float:
        """The place of a point on the axis: the number; of words their position, the arms of each beside each other."""
        if not self.series.in_words and isinstance(value, int | float):
            return value
        aside = self.arms.index(arm) - (len(self.arms) - 1) / 2
        return self.series.values.index(value) + _ARMS_WIDTH * aside / len(self.arms)


_Points = Mapping[str, Mapping[Scalar, Cell]]
"""The figures of each arm by swept value."""


def _points(of: SeriesData, arms: Sequence[str], cell: Callable[[WorkloadData, str], Cell]) -> _Points:
    found = {arm: {at: cell(data, arm) for at, data in of.compared} for arm in arms}
    return {arm: {at: one for at, one in line.items() if one.value is not None} for arm, line in found.items()}


def _value(of: Cell) -> float:
    assert isinstance(of.value, int | float)
    return of.value


def against(panel: Panel, of: SeriesData, style: Style) -> Figure | NoFigure:
    """A line an arm through its figures; a cross where its runs ran out of memory."""
    (key,) = panel.metrics
    points = _points(of, of.arms, lambda data, arm: quantity_cell(data.figure_of(arm, key), panel.unit))
    known = [_value(one) for line in points.values() for one in line.values()]
    if not known:
        return NoFigure(f"no run measured {key}")
    unit, remarks = axis_unit(known, panel.unit), Remarks()
    _without_points(remarks, of, points, key, "not measured")
    traces = _lines(of, points, unit.factor, style)
    for index, arm in enumerate(of.arms):
        lost = [(at, run.seed) for at, data in of.compared for run in data.runs_of(arm) if run.outcome == "oom"]
        if lost:
            values = ", ".join(value_text(at) for at in of.series.values if at in {at for at, _ in lost})
            remarks.clauses.append(f"{arm} ran out of memory at {of.series.name} {values} (x)")
            traces.append(_crosses(arm, lost, max(known) * unit.factor * (1 - 0.07 * index), of, style))
    y = axis(axis_title(metric_name(panel), unit.unit), from_zero=panel.from_zero)
    return _over(panel, of, points, remarks, traces=traces, y=y)


def effects_against(panel: Panel, of: SeriesData, style: Style) -> Figure | NoFigure:
    """A line an arm through the means over pairs, with their 95% intervals; a dotted one where there is no effect."""
    (key,) = panel.metrics
    baselines = {one.arm for data in of.data for one in data.arms if one.is_baseline}

    def mean(data: WorkloadData, arm: str) -> Cell:
        found = effects(panel, data, arm)
        return Cell() if found is None else mean_cell(found.mean, panel)

    points = _points(of, [arm for arm in of.arms if arm not in baselines], mean)
    if not any(points.values()):
        return NoFigure(f"no arm has a pair of runs with the baseline that measured {key}")
    remarks = Remarks()
    _without_points(remarks, of, points, key, "no pair to compare")
    y = axis(effect_title(panel, effect_unit(panel)))
    shapes = [rule(EFFECTS[panel.effect].null, "y")]
    return _over(panel, of, points, remarks, traces=_lines(of, points, 1.0, style), y=y, shapes=shapes)


def _over(panel: Panel, of: SeriesData, points: _Points, remarks: Remarks, **content: Any) -> Figure:
    known = {arm: line for arm, line in points.items() if line}
    columns = (Column(of.series.name), *(Column(arm, numeric=True) for arm in known))
    rows = ((Cell(value_text(at), at), *(line.get(at, Cell()) for line in known.values())) for at in of.series.values)
    table = Table(key=panel.key, columns=columns, rows=tuple(map(Row, rows)))
    return panel_figure(panel, remarks, x=_axis(of.series), legend=True, height=360, table=table, **content)


def _lines(of: SeriesData, points: _Points, factor: float, style: Style) -> list[Json]:
    traces = []
    for arm, line in points.items():
        if line:
            look, y = style.arms[arm], [_value(one) * factor for one in line.values()]
            ends = [(factor * (one.low or _value(one)), factor * (one.high or _value(one))) for one in line.values()]
            trace = scatter(
                arm,
                [of.place(arm, at) for at in line],
                y,
                look.colour,
                line=0.0 if of.series.in_words else 2 + 1.5 * look.beneath,
                dash=look.dash,
                symbol=look.symbol,
                size=9 + 2 * look.beneath,
                hover=[f"{value_text(at)}: {one.text} {one.detail}".strip() for at, one in line.items()],
                meta={"arm": arm},
                **whiskers("y", y, ends, look.colour),
            )
            traces.append(trace)
    return traces


def _crosses(arm: str, where: Sequence[tuple[Scalar, int]], height: float, of: SeriesData, style: Style) -> Json:
    return scatter(
        f"{arm}: out of memory",
        [of.place(arm, at) for at, _ in where],
        [height] * len(where),
        style.arms[arm].colour,
        symbol="x",
        size=12,
        showlegend=False,
        hover=[f"{value_text(at)}, seed {seed}: out of memory" for at, seed in where],
        meta={"arm": arm, "seeds": [seed for _, seed in where]},
    )


def _without_points(remarks: Remarks, of: SeriesData, points: _Points, key: str, otherwise: str) -> None:
    """Say of measured arms without a point why they have none."""
    measured = {arm for data in of.data for arm in data.measured_arms}
    for arm, line in points.items():
        if not line and arm in measured:
            disturbed = any(data.contaminated(arm, key) for data in of.data)
            remarks.without([arm], "every run is contaminated" if disturbed else otherwise)


def _axis(series: Series) -> Json:
    """A logarithmic axis with the values as labels, those close to each other in one; of words one a place."""
    title = series.name
    if series.in_words:
        ticks = {float(place): value_text(word) for place, word in enumerate(series.values)}
        return axis(title, ticks=ticks, range=(-0.5, len(ticks) - 0.5))
    numbers = [value for value in series.values if isinstance(value, int | float)]
    if min(numbers) <= 0:
        return axis(title)
    span = math.log(max(numbers) / min(numbers))
    close: list[list[float]] = []
    for value in numbers:
        if close and math.log(value / close[-1][-1]) < _MIN_TICK_DISTANCE * span:
            close[-1].append(value)
        else:
            close.append([value])
    labels = {math.sqrt(near[0] * near[-1]): "\n".join(map(value_text, near)) for near in close}
    return axis(title, log=True, ticks=labels)
