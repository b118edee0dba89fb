"""Panels with bars: a metric of each arm, and parts of a whole."""

from collections.abc import Mapping, Sequence
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
    rows_height,
    without,
)
from ampsweep.report.palette import CATEGORY_COLOURS, OTHER_COLOUR, ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, axis_unit, count_cell, quantity, quantity_cell
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import GIB

_BEYOND: Final = 1.05  # the end of the axis over the largest value
_REST: Final = memory_key(UNATTRIBUTED)
_REST_REMARK: Final = (
    "unattributed: what the run's peak has besides the tensors of the traced step, such as workspaces of kernels and "
    "the rounding of allocations"
)


def by_arm(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A row for each arm: a bar for its figure in the comparison (or else the median) and a dot for each run."""
    (key,) = panel.metrics
    measured = {arm: values for arm in data.names if (values := data.values_of(arm, key))}
    if not measured:
        return None
    figures, name = _figures(data, key, measured)
    every = [*figures.values(), *(value for values in measured.values() for _, value in values)]
    unit, text = axis_unit([max(map(abs, every))], panel.unit), partial(quantity, unit=panel.unit)
    ends = min(0.0, *every) * unit.factor * _BEYOND, max(0.0, *every) * unit.factor * _BEYOND
    ends = ends if any(ends) else (0.0, 1.0)
    traces, rows = list[Json](), {}
    for arm, values in measured.items():
        figure, look, meta = figures[arm], styles[arm], {"arm": arm}
        x, hover = [figure * unit.factor], [f"{name} {text(figure)}"]
        traces += [
            bars(arm, [arm], x, look.colour, patterns=[look.pattern], hover=hover, meta=meta),
            dots(arm, [(run.seed, value) for run, value in values], unit.factor, text, look),
            scatter("", [ends[1]], [arm], look.colour, texts=[text(figure)], meta=meta),
        ]
        runs = [value for _, value in values]
        shown = (figure, min(runs), max(runs))
        rows[arm] = [*(quantity_cell(value, panel.unit) for value in shown), count_cell(len(runs))]
    missing = [arm for arm in data.measured_arms if arm not in measured]
    return panel_figure(
        panel,
        [*without(missing), *dots_left_out(max(map(len, measured.values())))],
        traces=traces,
        x=axis(metric_name(panel), unit.unit, after=f", {name}", range=ends),
        y=row_axis([*measured]),
        height=rows_height(len(measured)),
        table=arms_table(panel, (name, "lowest", "highest", "runs"), rows),
    )


def _figures(data: WorkloadData, key: str, arms: Mapping[str, object]) -> tuple[dict[str, float], str]:
    """The figure of each arm, and how it follows from the runs: as in the comparison's table if that has all arms."""
    of_table = {compared.arm: compared.figure(key) for compared in data.arms}
    found = {arm: value for arm in arms if (value := of_table.get(arm)) is not None}
    if len(found) == len(arms):
        return found, "mean over pairs" if len(data.names) > 1 else "mean"
    return {arm: value for arm in arms if (value := data.median_of(arm, key)) is not None}, "median of runs"


_Bar = tuple[str, bool]  # an arm, and True if the bar shows its prediction
_Parts = Mapping[str, float]  # metric key -> value, including the rest of the whole


def stack(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """For each arm the stacked metrics of the run with the median whole, and below, striped, their prediction."""
    shown: dict[_Bar, _Parts] = {}
    for arm in data.names:
        for is_predicted, parts_of in ((False, _measured), (True, _predicted)):
            if parts := _middle([parts_of(panel, run) for run in data.runs_of(arm)]):
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
    """The sum of a bar; of a prediction with its error."""
    total, measured = sum(bars[bar].values()), sum(bars.get((bar[0], False), {}).values())
    error = f" ({100 * (total - measured) / measured:+.1f}%)" if bar[1] and measured else ""
    return Cell(quantity(total, unit) + error, total)
