"""Kinds `by_arm` and `chain`: metrics of the summary as bars."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from ampsweep.report.figures.figure import (
    Layout,
    NoFigure,
    PanelFigure,
    Remarks,
    Style,
    Trace,
    arm_axis,
    arm_label,
    axis_title,
    by_seed,
    not_measured,
    plotly_text,
    rows_height,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.table import figures_table
from ampsweep.report.units import AxisUnit, axis_unit, quantity
from ampsweep.report.workload_data import ArmRuns, WorkloadData

_ROOM_FOR_FIGURES_PX: Final = 96
"""Room right of the axis for the figures: beside a bar they would lie under the dots, beside a dot be taken for its."""


def show_by_arm(panel: Panel, data: ArmRuns, style: Style) -> PanelFigure | NoFigure:
    """A bar an arm, the median over its runs, with its figure right of the axis, and a dot a run."""
    (key,) = panel.metrics
    measured = {arm: values for arm in data.names if (values := data.values_of(arm, key))}
    remarks = Remarks()
    remarks.of_speed(data, data.measured_arms, key, measured)
    if not measured:
        is_disturbed = any(data.contaminated(arm, key) for arm in data.names)
        return NoFigure(f"every run that measured {key} is contaminated") if is_disturbed else not_measured(panel)
    all_values = [0.0, *(value for values in measured.values() for _, value in values)]
    unit = axis_unit([max(map(abs, all_values))], panel.unit)
    begin, end = (1.05 * unit.factor * extreme for extreme in (min(all_values), max(all_values)))
    end = end if begin < end else 1.0
    traces: list[Trace] = []
    rows = []
    for arm, values in measured.items():
        figures = [value for _, value in values]
        median = statistics.median(figures)
        alone = style.extent.alone(data.by_seed(arm, key))
        dots = style.extent.dots([(run.seed, value) for run, value in values])
        traces.append(_bar(arm, median, alone, unit, panel.unit, style))
        traces.append(_dots(arm, dots, unit, panel.unit, style))
        traces.append(_figure(arm, median, alone, end, panel.unit))
        ends = [quantity(end, panel.unit) for end in (min(figures), max(figures))]
        rows.append((arm, quantity(median, panel.unit), *ends, str(len(figures))))
    layout: Layout = {
        "xaxis": value_axis(f"{axis_title(panel, unit.unit)}, median of runs", range=[begin, end]),
        "yaxis": arm_axis(list(measured)),
        "height": rows_height(len(measured)),
        "showlegend": False,
        "bargap": 0.35,
        "margin": {"r": _ROOM_FOR_FIGURES_PX},
    }
    remarks.of_dots(max(map(len, measured.values())), style)
    table = figures_table("arm", ["median", "lowest", "highest", "runs"], rows)
    return PanelFigure(traces, layout, table, tuple(remarks.lines))


def show_chain(panel: Panel, data: WorkloadData, style: Style) -> PanelFigure | NoFigure:
    """For each metric a bar an arm, medians over runs; each metric contains the one before."""
    medians = {
        key: {one.arm: value for one in data.arms if (value := data.median_of(one.arm, key)) is not None}
        for key in panel.metrics
    }
    present = [key for key in panel.metrics if medians[key]]
    if not present:
        return not_measured(panel)
    remarks = Remarks()
    missing = [key for key in panel.metrics if key not in present]
    if missing:
        remarks.lines.append(f"not measured: {', '.join(missing)}")
    arms = [one.arm for one in data.arms if any(one.arm in medians[key] for key in present)]
    remarks.without([arm for arm in data.measured_arms if arm not in arms])
    unit = axis_unit((value for key in present for value in medians[key].values()), panel.unit)
    traces = [_chain_bar(arm, present, data, unit, panel.unit, style) for arm in arms]
    names = [_link(key) for key in present]
    layout: Layout = {
        "xaxis": value_axis(f"peak ({unit.unit})", rangemode="tozero"),
        "yaxis": arm_axis(names),
        "height": rows_height(len(present) * len(arms), 26, legend=True),
        "barmode": "group",
        "bargap": 0.2,
        "legend": {"traceorder": "normal"},
    }
    rows = [(arm, *(_cell(medians[key].get(arm), panel.unit) for key in present)) for arm in arms]
    return PanelFigure(traces, layout, figures_table("arm", names, rows), tuple(remarks.lines))


def _bar(arm: str, median: float, seeds: Mapping[int, float], unit: AxisUnit, of: str, style: Style) -> Trace:
    def length(value: float) -> Trace:
        return {"x": [value * unit.factor], "hovertext": [f"median {quantity(value, of)}"]}

    return {
        "type": "bar",
        "orientation": "h",
        "y": [arm_label(arm)],
        **length(median),
        "name": plotly_text(arm),
        "hoverinfo": "text+name",
        "marker": _fill(arm, style),
        "meta": {"arm": arm, "by_seed": by_seed({seed: length(value) for seed, value in seeds.items()})},
    }


def _figure(arm: str, median: float, seeds: Mapping[int, float], end: float, of: str) -> Trace:
    """The median in figures, at the end of the axis."""

    def text(value: float) -> Trace:
        return {"text": [quantity(value, of)]}

    return {
        "type": "scatter",
        "mode": "text",
        "x": [end],
        "y": [arm_label(arm)],
        **text(median),
        "textposition": "middle right",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "name": plotly_text(arm),
        "meta": {"arm": arm, "by_seed": by_seed({seed: text(value) for seed, value in seeds.items()})},
    }


def _dots(arm: str, values: Sequence[tuple[int, float]], unit: AxisUnit, of: str, style: Style) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [value * unit.factor for _, value in values],
        "y": [arm_label(arm)] * len(values),
        "name": plotly_text(arm),
        "hovertext": [f"seed {seed}: {quantity(value, of)}" for seed, value in values],
        "hoverinfo": "text+name",
        "marker": {
            "color": style.arms[arm].colour,
            "symbol": style.arms[arm].symbol,
            "size": 9,
            "line": {"width": 1.5, "color": "#333333"},
        },
        "meta": {"arm": arm, "seeds": [seed for seed, _ in values]},
    }


def _chain_bar(arm: str, keys: Sequence[str], data: WorkloadData, unit: AxisUnit, of: str, style: Style) -> Trace:
    def lengths(values: Sequence[float | None]) -> Trace:
        xs = [None if value is None else value * unit.factor for value in values]
        return {"x": xs, "text": [_cell(value, of) for value in values]}

    seeds = {key: style.extent.alone(data.by_seed(arm, key)) for key in keys}
    every = sorted({seed for values in seeds.values() for seed in values})
    of_seeds = {seed: lengths([seeds[key].get(seed) for key in keys]) for seed in every}
    return {
        "type": "bar",
        "orientation": "h",
        **lengths([data.median_of(arm, key) for key in keys]),
        "y": [_link(key) for key in keys],
        "name": plotly_text(arm),
        "textposition": "auto",
        "insidetextfont": {"color": "#111111"},
        "cliponaxis": False,
        "hoverinfo": "text+name",
        "marker": _fill(arm, style),
        "meta": {"arm": arm, "by_seed": by_seed(of_seeds)},
    }


def _fill(arm: str, style: Style) -> dict[str, object]:
    return {"color": style.arms[arm].colour, "pattern": {"shape": style.arms[arm].pattern}}


def _link(key: str) -> str:
    return {
        "memory/peak_allocated_gib": "allocated",
        "memory/peak_reserved_gib": "reserved",
        "memory/process_gib": "process",
    }.get(key, key)


def _cell(value: float | None, unit: str) -> str:
    return "-" if value is None else quantity(value, unit)
