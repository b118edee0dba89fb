"""Panels with bars: a metric of each arm, and parts of a whole."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from ampsweep.analysis.figure_keys import PEAK_MEMORY
from ampsweep.analysis.runs import Run
from ampsweep.analysis.waterfall import UNATTRIBUTED
from ampsweep.memory_categories import memory_key
from ampsweep.report.figure import Figure, Json, axis, bars, row_axis, scatter
from ampsweep.report.figures.drawing import (
    arms_table,
    dots,
    dots_left_out,
    metric_name,
    panel_figure,
    range_cells,
    rows_height,
    without,
)
from ampsweep.report.palette import CATEGORY_COLOURS, OTHER_COLOUR, ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, axis_unit, quantity, quantity_cell
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import GIB

_MEDIAN: Final = "median of runs"
_BEYOND: Final = 1.05  # the end of the axis over the largest value
_REST: Final = memory_key(UNATTRIBUTED)
_REST_REMARK: Final = (
    "unattributed: what the run's peak has besides the tensors of the traced step, such as workspaces of kernels and "
    "the rounding of allocations"
)


def by_arm(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A row for each arm: a bar for the median of its runs and a dot for each of them."""
    (key,) = panel.metrics
    measured = {arm: values for arm in data.compared.names if (values := data.values_of(arm, key))}
    if not measured:
        return None
    every = [value for values in measured.values() for _, value in values]
    unit, text = axis_unit(every, panel.unit), partial(quantity, unit=panel.unit)
    ends = min(0.0, *every) * unit.factor * _BEYOND, max(0.0, *every) * unit.factor * _BEYOND
    ends = ends if any(ends) else (0.0, 1.0)
    traces, rows = list[Json](), {}
    for arm, values in measured.items():
        runs, look, meta = [value for _, value in values], styles[arm], {"arm": arm}
        median = statistics.median(runs)
        x, hover = [median * unit.factor], [f"{_MEDIAN} {text(median)}"]
        traces += [
            bars(arm, [arm], x, look.colour, hover=hover, meta=meta),
            dots(arm, values, unit.factor, text, look),
            scatter("", [ends[1]], [arm], look.colour, texts=[text(median)], meta=meta),
        ]
        rows[arm] = range_cells(median, runs, len(runs), panel.unit)
    missing = [arm for arm in data.measured_arms if arm not in measured]
    return panel_figure(
        panel,
        [*without(missing), *dots_left_out(max(map(len, measured.values())))],
        traces=traces,
        x=axis(metric_name(panel), unit.unit, after=f", {_MEDIAN}", range=ends),
        y=row_axis([*measured]),
        height=rows_height(len(measured)),
        table=arms_table(panel, (_MEDIAN, "lowest", "highest", "runs"), rows),
    )


_Bar = tuple[str, bool]  # an arm, and True if the bar shows its prediction
_Parts = Mapping[str, float]  # metric key -> value, including the rest of the whole


def stack(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """For each arm the stacked metrics of the run with the median whole, and below, striped, their prediction."""
    shown: dict[_Bar, _Parts] = {}
    for arm in data.compared.names:
        runs = data.runs_of(arm)
        measured = [_parts(panel, run.figure, run.figure(PEAK_MEMORY)) for run in runs if run.measured]
        for is_predicted, of_runs in ((False, measured), (True, [_predicted(panel, run) for run in runs])):
            if parts := _middle(of_runs):
                shown[arm, is_predicted] = parts
    if not shown:
        return None
    remarks = without([arm for arm in data.measured_arms if (arm, False) not in shown])
    unit = axis_unit((sum(parts.values()) for parts in shown.values()), panel.unit)
    used = [key for key in (*panel.metrics, _REST) if any(parts.get(key) for parts in shown.values())]
    if _REST in used:
        remarks.append(_REST_REMARK)
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
            meta={"arms": arms},
        )
        for key, name in names.items()
    ]
    rows = {
        text: [_whole(bar, shown, panel.unit), *(quantity_cell(parts.get(key), panel.unit) for key in used)]
        for text, (bar, parts) in zip(labels, shown.items(), strict=True)
    }
    columns = [Column(name.replace("_", " "), key, numeric=True) for key, name in names.items()]
    return panel_figure(
        panel,
        remarks,
        traces=traces,
        x=axis("memory at the peak", unit.unit),
        y=row_axis(labels),
        height=rows_height(len(shown), 44, legend=True),
        legend=True,
        table=arms_table(panel, ["all", *columns], rows, dict(zip(labels, arms, strict=True))),
    )


def _middle(of_runs: Sequence[_Parts]) -> _Parts:
    """The parts of the run with the median whole (the lower of two), so that they add up."""
    known = sorted((parts for parts in of_runs if parts), key=lambda parts: sum(parts.values()))
    return known[(len(known) - 1) // 2] if known else {}


def _predicted(panel: Panel, run: Run) -> _Parts:
    prediction, whole = run.record.prediction, run.predicted_bytes
    peak = {} if prediction is None else prediction.peak or {}
    figures = {memory_key(category): size / GIB for category, size in peak.items()}
    return _parts(panel, figures.get, None if whole is None else whole / GIB)


def _parts(panel: Panel, figure: Callable[[str], float | None], whole: float | None) -> _Parts:
    parts = {key: value for key in panel.metrics if (value := figure(key)) is not None}
    rest = 0.0 if whole is None else round((whole - sum(parts.values())) * GIB) / GIB
    return {**parts, _REST: rest} if parts and rest > 0 else parts


def _whole(bar: _Bar, bars: Mapping[_Bar, _Parts], unit: str) -> Cell:
    """The sum of a bar; of a prediction with its error."""
    total, measured = sum(bars[bar].values()), sum(bars.get((bar[0], False), {}).values())
    error = f" ({100 * (total - measured) / measured:+.1f}%)" if bar[1] and measured else ""
    return Cell(quantity(total, unit) + error, total)
