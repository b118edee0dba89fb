"""Panels with lines: a metric over the steps, and a metric or its effect over a swept value."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ampsweep.analysis.runs import Run, Scalar
from ampsweep.analysis.swept_series import Series, value_text
from ampsweep.report.figure import Figure, Json, area, axis, label, rule, scatter, whiskers
from ampsweep.report.figures.drawing import arms_table, metric_name, panel_figure, range_cells, without
from ampsweep.report.figures.pairs import effect_of, mean_cell
from ampsweep.report.histories import Curve, band, short_numbers
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.tables import JSON_NAME, Cell, Column, Row, Table, axis_unit, quantity_cell
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import seeds_text

_MAX_LINES: Final = 8  # runs of an arm that have a line each; beyond that there is only their band
_MAX_POINTS: Final = 300  # points of a curve: about one in two or three pixels


def curves(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A thin line for each run; for an arm with several finished runs their mean and the band of their extremes."""
    (key,) = panel.metrics
    traces, remarks, longest = list[Json](), list[str](), 0
    rows: dict[str, list[Cell]] = {}
    known = data.histories.curves
    logged = {
        arm: [(run, own[key]) for run in data.runs_of(arm) if key in (own := known.get(run.directory, {}))]
        for arm in data.compared.names
    }
    for arm, drawn in logged.items():
        finite = [(run, curve) for run, curve in drawn if np.isfinite(curve.values).any()]
        if left := [run.seed for run, curve in drawn if not np.isfinite(curve.values).any()]:
            remarks.append(f"{arm}: never a finite value ({seeds_text(sorted(left))})")
        longest = max(longest, *(len(curve) for _, curve in drawn), 0)
        traces += (of_band := _band(arm, finite, data.histories.partial, styles[arm]))
        alone: Sequence[tuple[Run, Curve]] = finite
        if len(finite) > _MAX_LINES:
            alone = [(run, curve) for run, curve in finite if not (of_band and run.finished)][:_MAX_LINES]
            num_left = len(finite) - len(alone)
            remarks.append(f"{arm}: {num_left:,} runs have no line of their own; {JSON_NAME} has all runs")
        traces += _runs(alone, styles[arm], has_band=bool(of_band))
        if values := [curve.values[np.isfinite(curve.values)] for _, curve in finite]:
            last = float(np.median([of_run[-1] for of_run in values]))
            rows[arm] = range_cells(last, np.concatenate(values).tolist(), len(values), panel.unit)
    if not any(len(trace["x"]) > 1 for trace in traces):
        return None
    remarks += without([arm for arm in data.measured_arms if not logged[arm]], "not logged")
    if longest > _MAX_POINTS:
        thinned = f"curves of up to {longest} logged steps are thinned to {_MAX_POINTS} points"
        remarks.append(f"{thinned}: the lowest and the highest value of each stretch")
    return panel_figure(
        panel,
        remarks,
        traces=traces,
        x=axis("step"),
        y=axis(metric_name(panel), panel.unit, log=panel.log),
        legend=True,
        table=arms_table(panel, ("last value", "lowest", "highest", "runs"), rows),
    )


def _band(arm: str, drawn: Sequence[tuple[Run, Curve]], partial: Collection[Path], look: ArmStyle) -> list[Json]:
    whole = band([curve for run, curve in drawn if run.finished and run.directory not in partial])
    if whole is None:
        return []
    thinned = whole.thinned(_MAX_POINTS)
    steps, low, mean, high = map(short_numbers, (thinned.steps, thinned.low, thinned.mean, thinned.high))
    meta, width = {"arm": arm}, 2 + 0.8 * look.beneath
    line = scatter(arm, steps, mean, look.colour, line=width, dash=look.dash, legendgroup=arm, meta=meta)
    return [*area(steps, low, high, look.colour, legendgroup=arm, meta=meta), line]


def _runs(alone: Sequence[tuple[Run, Curve]], look: ArmStyle, *, has_band: bool) -> Iterator[Json]:
    for index, (run, curve) in enumerate(alone):
        shown = curve.thinned(_MAX_POINTS)
        in_legend = not has_band and index == 0
        pointed_at = f"{run.arm}, seed {run.seed}" + ("" if run.finished else f", {run.outcome}")
        yield scatter(
            run.arm,
            short_numbers(shown.steps),
            short_numbers(shown.values),
            look.colour,
            line=1.2,
            dash=look.dash if run.finished else "dot",
            symbol=look.symbol if len(shown) == 1 else "",
            opacity=0.9 if in_legend or not run.finished else 0.45,
            hovertemplate=f"%{{x}}, %{{y}}<extra>{label(pointed_at)}</extra>",
            showlegend=in_legend,
            legendgroup=run.arm,
            meta={"arm": run.arm},
        )


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
        return list(dict.fromkeys(arm for data in self.data for arm in data.compared.names))


_Points = Mapping[str, Mapping[Scalar, Cell]]  # arm -> swept value -> figure


def _points(of: SeriesData, arms: Sequence[str], cell: Callable[[WorkloadData, str], Cell]) -> _Points:
    found = {arm: {at: cell(data, arm) for at, data in of.compared} for arm in arms}
    return {arm: {at: shown for at, shown in line.items() if shown.value is not None} for arm, line in found.items()}


def _number(value: Scalar) -> float:
    assert isinstance(value, int | float), "a series of words has no panels"
    return value


def against(panel: Panel, of: SeriesData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A line for each arm through its figures, with crosses where its runs ran out of memory."""
    (key,) = panel.metrics
    points = _points(of, of.arms, lambda data, arm: quantity_cell(data.figure_of(arm, key), panel.unit))
    known = [_number(cell.value) for line in points.values() for cell in line.values()]
    if not known:
        return None
    unit, remarks, crosses = axis_unit(known, panel.unit), [], []
    for index, arm in enumerate(of.arms):
        lost = [(at, run.seed) for at, data in of.compared for run in data.runs_of(arm) if run.outcome == "oom"]
        if lost:
            values = ", ".join(value_text(at) for at in of.series.values if at in {at for at, _ in lost})
            remarks.append(f"{arm} ran out of memory at {of.series.name} {values} (x)")
            cross = scatter(
                f"{arm}: out of memory",
                [_number(at) for at, _ in lost],
                [max(known) * unit.factor * (1 - 0.07 * index)] * len(lost),
                styles[arm].colour,
                symbol="x",
                size=12,
                showlegend=False,
                hover=[f"{value_text(at)}, seed {seed}: out of memory" for at, seed in lost],
                meta={"arm": arm},
            )
            crosses.append(cross)
    y = axis(metric_name(panel), unit.unit, from_zero=True)
    return _over(panel, of, points, remarks, traces=[*_lines(points, unit.factor, styles), *crosses], y=y)


def effects_against(panel: Panel, of: SeriesData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A line for each arm through its means over pairs with 95% intervals, and a dotted line at no effect."""
    effect = effect_of(panel)
    baselines = {compared.arm for data in of.data for compared in data.compared.arms if compared.is_baseline}

    def mean(data: WorkloadData, arm: str) -> Cell:
        found = next((effect.mean(compared) for compared in data.compared.arms if compared.arm == arm), None)
        return Cell() if found is None else mean_cell(found, effect)

    points = _points(of, [arm for arm in of.arms if arm not in baselines], mean)
    if not any(points.values()):
        return None
    y = axis(effect.title, effect.unit)
    return _over(panel, of, points, traces=[*_lines(points, 1.0, styles)], y=y, shapes=[rule(effect.null, "y")])


def _over(panel: Panel, of: SeriesData, points: _Points, remarks: Sequence[str] = (), **content: Any) -> Figure:
    known, numbers = {arm: line for arm, line in points.items() if line}, [*map(_number, of.series.values)]
    measured = {arm for data in of.data for arm in data.measured_arms}
    remarks = [*without([arm for arm in points if arm not in known and arm in measured]), *remarks]
    ticks = {value: value_text(value) for value in numbers} if min(numbers) > 0 else None
    x = axis(of.series.name, log=ticks is not None, ticks=ticks)
    columns = (Column(of.series.name), *(Column(arm, numeric=True) for arm in known))
    rows = ((Cell(value_text(at), at), *(line.get(at, Cell()) for line in known.values())) for at in of.series.values)
    titled = replace(panel, title=panel.title.replace("against size", f"against {of.series.name}"))
    table = Table(key=panel.key, columns=columns, rows=tuple(map(Row, rows)))
    return panel_figure(titled, remarks, x=x, legend=True, height=360, table=table, **content)


def _lines(points: _Points, factor: float, styles: Mapping[str, ArmStyle]) -> Iterator[Json]:
    for arm, line in points.items():
        if line:
            look, y = styles[arm], [factor * _number(cell.value) for cell in line.values()]
            ends = [
                (at if cell.low is None else factor * cell.low, at if cell.high is None else factor * cell.high)
                for at, cell in zip(y, line.values(), strict=True)
            ]
            yield scatter(
                arm,
                [_number(at) for at in line],
                y,
                look.colour,
                line=2 + 1.5 * look.beneath,
                dash=look.dash,
                symbol=look.symbol,
                size=9 + 2 * look.beneath,
                hover=[f"{value_text(at)}: {cell.text} {cell.detail}".strip() for at, cell in line.items()],
                meta={"arm": arm},
                **whiskers("y", y, ends, look.colour),
            )
