"""Kinds of panels with bars: a metric of each arm, metrics that contain each other, parts of a whole, and changes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from ampsweep.analysis.runs import PEAK_MEMORY, Run
from ampsweep.analysis.waterfall import UNATTRIBUTED, Waterfall
from ampsweep.memory_categories import memory_key
from ampsweep.report.figure import Figure, Json, NoFigure, axis, bars, row_axis, rule, scatter
from ampsweep.report.figures.drawing import (
    Remarks,
    Style,
    arms_table,
    axis_title,
    dots,
    metric_name,
    not_measured,
    panel_figure,
    rows_height,
)
from ampsweep.report.palette import CATEGORY_COLOURS, OTHER_COLOUR
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, axis_unit, count_cell, quantity, quantity_cell
from ampsweep.report.workload_data import Anything, ArmRuns, WorkloadData
from ampsweep.text import GIB

_SPARE: Final = 0.06
"""Share of the values' range that is left free on either side of an axis that does not begin at zero."""
_LINKS: Final = {
    "memory/peak_allocated_gib": "allocated",
    "memory/peak_reserved_gib": "reserved",
    "memory/process_gib": "process",
}
_REST: Final = memory_key(UNATTRIBUTED)
_WHAT_THE_REST_IS: Final = (
    "unattributed: what the run's peak has besides the tensors of the traced step, such as workspaces of kernels and "
    "the rounding of allocations"
)
_ROOM_FOR_LABELS: Final = 0.2
"""Share of the axis on either side for the figures at the ends of bars."""
_PEAK: Final = "whole peak"


def by_arm(panel: Panel, data: ArmRuns[Anything], style: Style) -> Figure | NoFigure:
    """An arm a row: its figure, that of the comparison's table where that has one, else the median, and a dot a run."""
    (key,) = panel.metrics
    measured = {arm: values for arm in data.names if (values := data.values_of(arm, key))}
    remarks = Remarks()
    remarks.of_speed(data, data.measured_arms, key, measured)
    if not measured:
        is_disturbed = any(data.contaminated(arm, key) for arm in data.names)
        return NoFigure(f"every run that measured {key} is contaminated") if is_disturbed else not_measured(panel)
    figures, name = _figures(data, key, measured)
    every = [*figures.values(), *(value for values in measured.values() for _, value in values)]
    unit, text = axis_unit([max(map(abs, every))], panel.unit), partial(quantity, unit=panel.unit)
    low, high = (unit.factor * end for end in (min(every), max(every)))
    if panel.from_zero:
        ends = min(0.0, 1.05 * low), max(0.0, 1.05 * high)
        ends = ends if any(ends) else (0.0, 1.0)
    else:
        spare = _SPARE * (high - low) or _SPARE * abs(high) or 1.0
        ends = low - spare, high + spare
    traces, rows = list[Json](), {}
    for arm, values in measured.items():
        figure, look, meta = figures[arm], style.arms[arm], {"arm": arm}
        x, hover = [figure * unit.factor], [f"{name} {text(figure)}"]
        traces += [
            bars(arm, [arm], x, look.colour, patterns=[look.pattern], hover=hover, meta=meta)
            if panel.from_zero
            else scatter(arm, x, [arm], look.colour, symbol="line-ns-open", size=26, edge=1.5, hover=hover, meta=meta),
            dots(arm, [(run.seed, value) for run, value in values], unit.factor, text, style),
            scatter("", [ends[1]], [arm], look.colour, texts=[text(figure)], meta=meta),
        ]
        runs = [value for _, value in values]
        rows[arm] = [*(quantity_cell(one, panel.unit) for one in (figure, min(runs), max(runs))), count_cell(len(runs))]
    remarks.of_dots(max(map(len, measured.values())), style)
    return panel_figure(
        panel,
        remarks,
        traces=traces,
        x=axis(f"{axis_title(metric_name(panel), unit.unit)}, {name}", range=ends),
        y=row_axis([*measured]),
        height=rows_height(len(measured)),
        table=arms_table(panel, (name, "lowest", "highest", "runs"), rows),
    )


def _figures(data: ArmRuns[Anything], key: str, arms: Mapping[str, object]) -> tuple[dict[str, float], str]:
    """The figure of each arm, and what it is of its runs: that of the comparison's table, if it has all of them."""
    of_table = {one.arm: one.figure(key) for one in data.arms} if isinstance(data, WorkloadData) else {}
    found = {arm: value for arm in arms if (value := of_table.get(arm)) is not None}
    if len(found) == len(arms):
        return found, "mean over pairs" if len(data.names) > 1 else "mean"
    return {arm: value for arm in arms if (value := data.median_of(arm, key)) is not None}, "median of runs"


def chain(panel: Panel, data: WorkloadData, style: Style) -> Figure | NoFigure:
    """For each metric a bar an arm; each metric contains the one before."""
    figures = {arm: {key: data.figure_of(arm, key) for key in panel.metrics} for arm in data.names}
    present = [key for key in panel.metrics if any(of[key] is not None for of in figures.values())]
    if not present:
        return not_measured(panel)
    remarks = Remarks()
    if missing := [key for key in panel.metrics if key not in present]:
        remarks.clauses.append(f"not measured: {', '.join(missing)}")
    shown = {arm: of for arm, of in figures.items() if any(of[key] is not None for key in present)}
    remarks.without([arm for arm in data.measured_arms if arm not in shown])
    values = {arm: {_LINKS.get(key, key): of[key] for key in present} for arm, of in shown.items()}
    return _grouped(panel, remarks, values, "peak", style)


def changes(panel: Panel, data: WorkloadData, style: Style) -> Figure | NoFigure:
    """For each category of memory a bar an arm, left of zero what it saves; below them the change of the whole peak."""
    found = {one.arm: one.waterfall for one in data.compared.verdict.arms if one.waterfall is not None}
    if not found:
        return NoFigure("no pair of runs has its memory by category")
    remarks = Remarks()
    for arm, one in found.items():
        if not one.same_in_all_pairs:
            remarks.clauses.append(f"{arm}: pairs differ; shown is that of seed {one.seed}, with the median change")
    of_arms = {arm: _changes(one) for arm, one in found.items()}
    used = [name for name in dict.fromkeys(name for of in of_arms.values() for name in of) if name != _PEAK]
    names = [name for name in used if any(of.get(name) for of in of_arms.values())] + [_PEAK]
    values = {arm: {name: of.get(name, 0.0) for name in names} for arm, of in of_arms.items()}
    return _grouped(panel, remarks, values, "peak memory, arm minus baseline", style, is_change=True)


def _changes(of: Waterfall) -> dict[str, float]:
    by_category = {step.category.replace("_", " "): step.change_bytes / GIB for step in of.steps}
    return {**by_category, _PEAK: (of.arm_bytes - of.baseline_bytes) / GIB}


def _grouped(
    panel: Panel,
    remarks: Remarks,
    values: Mapping[str, Mapping[str, float | None]],
    title: str,
    style: Style,
    *,
    is_change: bool = False,
) -> Figure:
    """Bars of several arms in each row: by arm, and in it by row, GiB."""
    rows = list(next(iter(values.values())))
    known = [value for of in values.values() for value in of.values() if value is not None]
    unit = axis_unit(known, "GiB")
    low, high = min(0.0, *known) * unit.factor, max(0.0, *known) * unit.factor
    spare = _ROOM_FOR_LABELS * ((high - low) or 1.0)

    def written(value: float | None) -> str:
        return "-" if value is None else quantity(value, "GiB", sign=is_change)

    def drawn(arm: str, of: Mapping[str, float | None]) -> Json:
        scaled = [None if value is None else value * unit.factor for value in of.values()]
        texts = [written(value) if value or not is_change else "" for value in of.values()]
        look = style.arms[arm]
        patterns = [look.pattern] * len(rows)
        return bars(arm, rows, scaled, look.colour, texts=texts, patterns=patterns, meta={"arm": arm})

    cells = {arm: [Cell(written(one), one) for one in of.values()] for arm, of in values.items()}
    return panel_figure(
        panel,
        remarks,
        traces=[drawn(*of_arm) for of_arm in values.items()],
        x=axis(axis_title(title, unit.unit), range=(low - spare * is_change, high + spare)),
        y=row_axis(rows),
        shapes=[rule(0.0)] if is_change else [],
        height=rows_height(len(rows) * len(values), 26, legend=True),
        legend=True,
        table=arms_table(panel, rows, cells),
    )


_Bar = tuple[str, bool]
"""An arm, and True if the bar shows its prediction."""
_Parts = Mapping[str, float]
"""Metric key -> value, of those that are known; and what they lack of the whole."""


def stack(panel: Panel, data: ArmRuns[Anything], style: Style) -> Figure | NoFigure:
    """A bar an arm, its metrics stacked, of the run with the median whole; below it, striped, what was predicted."""
    kinds: tuple[tuple[bool, Callable[[Panel, Run], _Parts]], ...] = ((False, _measured), (True, _predicted))
    found = {
        (arm, is_predicted): _middle([parts(panel, run) for run in data.runs_of(arm)])
        for arm in data.names
        for is_predicted, parts in kinds
    }
    shown = {bar: parts for bar, parts in found.items() if parts}
    if not shown:
        return not_measured(panel)
    remarks = Remarks()
    remarks.without([arm for arm in data.measured_arms if (arm, False) not in shown])
    unit = axis_unit((sum(parts.values()) for parts in shown.values()), panel.unit)
    used = [key for key in (*panel.metrics, _REST) if any(parts.get(key) for parts in shown.values())]
    if _REST in used:
        remarks.clauses.append(_WHAT_THE_REST_IS)
    labels = [f"{arm} (predicted)" if is_predicted else arm for arm, is_predicted in shown]
    arms = [arm for arm, _ in shown]
    names = {key: key.partition("/")[2].removesuffix("_gib") for key in used}
    traces = [
        bars(
            name.replace("_", " "),
            labels,
            [None if key not in parts else parts[key] * unit.factor for parts in shown.values()],
            CATEGORY_COLOURS.get(name, OTHER_COLOUR),
            texts=[quantity(parts[key], panel.unit) if key in parts else "" for parts in shown.values()],
            patterns=["/" if is_predicted else "" for _, is_predicted in shown],
            inside=True,
            meta={"arms": arms},
        )
        for key, name in names.items()
    ]
    rows = {
        text: [_whole(bar, shown, panel.unit), *(quantity_cell(parts.get(key), panel.unit) for key in used)]
        for text, (bar, parts) in zip(labels, shown.items(), strict=True)
    }
    columns: list[Column | str] = [
        "all",
        *(Column(name.replace("_", " "), key, numeric=True) for key, name in names.items()),
    ]
    return panel_figure(
        panel,
        remarks,
        traces=traces,
        stacked=True,
        x=axis(axis_title("memory at the peak", unit.unit)),
        y=row_axis(labels),
        height=rows_height(len(shown), 44, legend=True),
        legend=True,
        table=arms_table(panel, columns, rows, dict(zip(labels, arms, strict=True))),
    )


def _middle(of_runs: Sequence[_Parts]) -> _Parts:
    """The parts of the run with the median whole, so that they add up; of two in the middle the smaller."""
    known = sorted((parts for parts in of_runs if parts), key=lambda parts: sum(parts.values()))
    return known[(len(known) - 1) // 2] if known else {}


def _measured(panel: Panel, run: Run) -> _Parts:
    if not run.measured:
        return {}
    parts = {key: value for key in panel.metrics if (value := run.figure(key)) is not None}
    return _with_rest(parts, run.figure(panel.whole) if panel.whole else None)


def _predicted(panel: Panel, run: Run) -> _Parts:
    prediction = run.record.prediction
    if prediction is None or prediction.peak is None:
        return {}
    of_keys = {memory_key(category): size / GIB for category, size in prediction.peak.items()}
    parts = {key: of_keys[key] for key in panel.metrics if key in of_keys}
    whole = run.predicted_bytes if panel.whole == PEAK_MEMORY else None
    return _with_rest(parts, None if whole is None else whole / GIB)


def _with_rest(parts: _Parts, whole: float | None) -> _Parts:
    rest = 0.0 if whole is None else round((whole - sum(parts.values())) * GIB) / GIB
    return {**parts, _REST: rest} if parts and rest > 0 else parts


def _whole(bar: _Bar, bars: Mapping[_Bar, _Parts], unit: str) -> Cell:
    """The whole of a bar; of a predicted one also by how much it misses the measured one."""
    total, measured = sum(bars[bar].values()), sum(bars.get((bar[0], False), {}).values())
    miss = f" ({100 * (total - measured) / measured:+.1f}%)" if bar[1] and measured else ""
    return Cell(quantity(total, unit) + miss, total)
