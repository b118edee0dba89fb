"""Kinds of panels with lines: a metric over the steps, and a metric or its effect over a swept value."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ampsweep.analysis.runs import Run, Scalar
from ampsweep.analysis.swept import Series, value_text
from ampsweep.metrics import METRICS
from ampsweep.report.cells import axis_unit, quantity_cell
from ampsweep.report.curves import Curve, band, short_numbers
from ampsweep.report.figure import Area, Axis, Figure, Mark, NoFigure, Owner, Rule, Scatter
from ampsweep.report.figures.drawing import Remarks, Style, arms_table, axis_title, metric_name, panel_figure
from ampsweep.report.figures.pairs import NULL, effect_title, effect_unit, effects, mean_cell
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import listed

MAX_LINES: Final = 8
"""An arm with more runs shows their band alone, and a single run's line when its seed is chosen."""
_MIN_TICK_DISTANCE: Final = 0.07
"""Share of the axis within which labels of values would cover each other: they are one label then."""
_ARMS_WIDTH: Final = 0.5
"""Share of the distance between two words that the points of all arms take."""


def curves(panel: Panel, data: WorkloadData, style: Style) -> Figure | NoFigure:
    """Each run a thin line; for an arm with several finished runs their mean, in the band from lowest to highest."""
    (key,) = panel.metrics
    remarks = Remarks()
    marks: list[Mark] = []
    rows: dict[str, list[Cell]] = {}
    longest, is_all, absent = 0, True, []
    for arm in (one.arm for one in data.arms):
        drawn = [(run, curve) for run in data.runs_of(arm) if (curve := data.curve_of(run, key)) is not None]
        finite = [(run, curve) for run, curve in drawn if np.isfinite(curve.values).any()]
        if not drawn:
            absent += [arm] if arm in data.measured_arms else []
            continue
        if len(finite) < len(drawn):
            left = sorted({run.seed for run, _ in drawn} - {run.seed for run, _ in finite})
            remarks.clauses.append(f"{arm}: never a finite value{_seeds(left)}")
        longest = max(longest, *(len(curve) for _, curve in drawn))
        of_arm = _of_arm(arm, finite, data.histories.partial, style)
        is_all = is_all and sum(mark.owner.seed is not None for mark in of_arm) == len(finite)
        marks += of_arm
        if finite:
            rows[arm] = _cells([curve for _, curve in finite], panel.unit)
    if not any(len(mark.x) > 1 for mark in marks if isinstance(mark, Scatter)):
        if marks:
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
        marks=marks,
        x=Axis(title="step"),
        y=Axis(title=axis_title(metric_name(panel), panel.unit), log=panel.log),
        legend=True,
        table=arms_table(panel, ("last value", "lowest", "highest", "runs"), rows),
    )


def _of_arm(
    arm: str, drawn: Sequence[tuple[Run, Curve]], partial: Collection[Path], style: Style
) -> list[Scatter | Area]:
    look, marks = style.arms[arm], list[Scatter | Area]()
    whole = band([curve for run, curve in drawn if run.finished and run.directory not in partial])
    if whole is not None:
        thinned = whole.thinned(style.extent.max_points)
        steps, owner = short_numbers(thinned.steps), Owner(arm=arm, over_seeds=True)
        low, mean, high = map(short_numbers, (thinned.low, thinned.mean, thinned.high))
        marks.append(Area(x=steps, low=low, high=high, colour=look.colour, group=arm, owner=owner))
        width = 2 + 0.8 * look.beneath
        marks.append(
            Scatter(name=arm, x=steps, y=mean, colour=look.colour, line=width, dash=look.dash, group=arm, owner=owner)
        )
    is_crowded = whole is not None and len(drawn) > MAX_LINES
    for index, (run, curve) in enumerate(_alone(drawn, style, has_band=whole is not None)):
        shown, is_first = curve.thinned(style.extent.max_points), whole is None and index == 0
        label = f"{run.arm}, seed {run.seed}" + ("" if run.finished else f", {run.outcome}")
        marks.append(
            Scatter(
                name=run.arm,  # of all runs: the legend names an arm by one of them
                x=short_numbers(shown.steps),
                y=short_numbers(shown.values),
                colour=look.colour,
                line=1.2,
                dash=look.dash if run.finished else "dot",
                symbols=[look.symbol] if len(shown) == 1 else [],
                opacity=0.9 if is_first or not run.finished else 0.45,
                label=label,
                legend=is_first,
                group=run.arm,
                owner=Owner(arm=run.arm, seed=run.seed, only_alone=is_crowded and run.finished),
            )
        )
    return marks


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
    return [*(quantity_cell(figure, unit) for figure in (last, *ends)), Cell(str(len(of)), len(of))]


def _seeds(seeds: Sequence[int]) -> str:
    return f" ({'seed' if len(seeds) == 1 else 'seeds'} {listed(map(str, seeds))})" if seeds else ""


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
    marks = _lines(of, points, unit.factor, style)
    for index, arm in enumerate(of.arms):
        lost = [(at, run.seed) for at, data in of.compared for run in data.runs_of(arm) if run.outcome == "oom"]
        if lost:
            values = ", ".join(value_text(at) for at in of.series.values if at in {at for at, _ in lost})
            remarks.clauses.append(f"{arm} ran out of memory at {of.series.name} {values} (x)")
            marks.append(_crosses(arm, lost, max(known) * unit.factor * (1 - 0.07 * index), of, style))
    y = Axis(title=axis_title(metric_name(panel), unit.unit), from_zero=panel.from_zero)
    return _over(panel, of, points, remarks, marks=marks, y=y)


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
    y = Axis(title=effect_title(panel, effect_unit(panel)))
    rule = Rule(at=NULL[panel.effect], axis="y")
    return _over(panel, of, points, remarks, marks=_lines(of, points, 1.0, style), y=y, rules=[rule])


def _over(
    panel: Panel,
    of: SeriesData,
    points: _Points,
    remarks: Remarks,
    *,
    marks: Sequence[Mark],
    y: Axis,
    rules: Sequence[Rule] = (),
) -> Figure:
    known = {arm: line for arm, line in points.items() if line}
    columns = (Column(of.series.name), *(Column(arm, numeric=True) for arm in known))
    rows = ((Cell(value_text(at), at), *(line.get(at, Cell()) for line in known.values())) for at in of.series.values)
    return panel_figure(
        panel,
        remarks,
        marks=marks,
        rules=rules,
        x=_axis(of.series),
        y=y,
        legend=True,
        height=360,
        table=Table(key=panel.key, columns=columns, rows=tuple(map(Row, rows))),
    )


def _lines(of: SeriesData, points: _Points, factor: float, style: Style) -> list[Mark]:
    marks: list[Mark] = []
    for arm, line in points.items():
        look = style.arms[arm]
        ends = [(one.low or _value(one), one.high or _value(one)) for one in line.values()]
        if line:
            marks.append(
                Scatter(
                    name=arm,
                    x=[of.place(arm, at) for at in line],
                    y=[_value(one) * factor for one in line.values()],
                    colour=look.colour,
                    line=0.0 if of.series.in_words else 2 + 1.5 * look.beneath,
                    dash=look.dash,
                    symbols=[look.symbol],
                    size=9 + 2 * look.beneath,
                    hover=[f"{value_text(at)}: {one.text} {one.detail}".strip() for at, one in line.items()],
                    interval="y",
                    ends=[(low * factor, high * factor) for low, high in ends],
                    owner=Owner(arm=arm),
                )
            )
    return marks


def _crosses(arm: str, where: Sequence[tuple[Scalar, int]], height: float, of: SeriesData, style: Style) -> Scatter:
    return Scatter(
        name=f"{arm}: out of memory",
        x=[of.place(arm, at) for at, _ in where],
        y=[height] * len(where),
        colour=style.arms[arm].colour,
        symbols=["x"],
        size=12,
        legend=False,
        hover=[f"{value_text(at)}, seed {seed}: out of memory" for at, seed in where],
        owner=Owner(arm=arm, seeds=tuple(seed for _, seed in where)),
    )


def _without_points(remarks: Remarks, of: SeriesData, points: _Points, key: str, otherwise: str) -> None:
    """Say of measured arms without a point why they have none."""
    measured = {arm for data in of.data for arm in data.measured_arms}
    for arm, line in points.items():
        if not line and arm in measured:
            disturbed = any(data.contaminated(arm, key) for data in of.data)
            remarks.without([arm], "every run is contaminated" if disturbed else otherwise)


def _axis(series: Series) -> Axis:
    """A logarithmic axis with the values as labels, those close to each other in one; of words one a place."""
    title = series.name
    if series.in_words:
        words = dict(enumerate(map(value_text, series.values)))
        return Axis(
            title=title, ticks={float(place): word for place, word in words.items()}, range=(-0.5, len(words) - 0.5)
        )
    numbers = [value for value in series.values if isinstance(value, int | float)]
    if min(numbers) <= 0:
        return Axis(title=title)
    span = math.log(max(numbers) / min(numbers))
    close: list[list[float]] = []
    for value in numbers:
        if close and math.log(value / close[-1][-1]) < _MIN_TICK_DISTANCE * span:
            close[-1].append(value)
        else:
            close.append([value])
    labels = {math.sqrt(near[0] * near[-1]): "\n".join(map(value_text, near)) for near in close}
    return Axis(title=title, log=True, ticks=labels)
