"""Kind `stack`: metrics of the summary that add up to one, predicted beside measured."""

import statistics
from collections.abc import Mapping

from ampsweep.memory_categories import memory_key
from ampsweep.report.figures.figure import (
    Layout,
    NoFigure,
    PanelFigure,
    Remarks,
    Style,
    Trace,
    arm_axis,
    arm_label,
    by_seed,
    not_measured,
    rows_height,
    value_axis,
)
from ampsweep.report.palette import CATEGORY_COLOURS, OTHER_COLOUR
from ampsweep.report.panels import Panel
from ampsweep.report.table import figures_table
from ampsweep.report.units import AxisUnit, axis_unit, quantity
from ampsweep.report.workload_data import ArmRuns
from ampsweep.text import GIB

Bar = tuple[str, bool]
"""An arm, and True if the bar shows its prediction."""
Parts = Mapping[str, float]
"""Metric key -> value, of those that are known."""


def show_stack(panel: Panel, data: ArmRuns, style: Style) -> PanelFigure | NoFigure:
    """A bar an arm, its metrics stacked, medians over runs; below it, striped, what was predicted."""
    bars = _bars(panel, data)
    if not bars:
        return not_measured(panel)
    remarks = Remarks()
    remarks.without([arm for arm in data.measured_arms if (arm, False) not in bars])
    unit = axis_unit((sum(parts.values()) for parts in bars.values()), panel.unit)
    used = [key for key in panel.metrics if any(parts.get(key) for parts in bars.values())]
    labels = {bar: f"{bar[0]} (predicted)" if bar[1] else bar[0] for bar in bars}
    layout: Layout = {
        "xaxis": value_axis(f"memory at the peak ({unit.unit})" if panel.unit == "GiB" else unit.unit),
        "yaxis": arm_axis(list(labels.values())),
        "height": rows_height(len(bars), 44, legend=True),
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "bargap": 0.3,
    }
    rows = [
        (labels[bar], _total(bar, bars, panel.unit), *(_cell(parts, key, panel.unit) for key in used))
        for bar, parts in bars.items()
    ]
    table = figures_table("arm", ["all", *(category(key) for key in used)], rows)
    seeds = {seed: _bars(panel, data.of_seed(seed)) for seed in data.seeds}
    traces = [_part(key, bars, seeds, labels, unit, panel.unit) for key in used]
    return PanelFigure(traces, layout, table, tuple(remarks.lines))


def _bars(panel: Panel, data: ArmRuns) -> dict[Bar, Parts]:
    bars: dict[Bar, Parts] = {}
    for arm in data.names:
        parts = {key: value for key in panel.metrics if (value := data.median_of(arm, key)) is not None}
        if parts:
            bars[arm, False] = parts
        if predicted := _predicted(panel, data, arm):
            bars[arm, True] = predicted
    return bars


def _total(bar: Bar, bars: Mapping[Bar, Parts], unit: str) -> str:
    """The whole of a bar; of a predicted one also by how much it misses the measured one."""
    total = sum(bars[bar].values())
    measured = sum(bars.get((bar[0], False), {}).values())
    miss = f" ({100 * (total - measured) / measured:+.1f}%)" if bar[1] and measured else ""
    return quantity(total, unit) + miss


def category(key: str) -> str:
    """The name of a category in prose: 'optimizer state' for `memory/optimizer_state_gib`."""
    return _bare(key).replace("_", " ")


def _bare(key: str) -> str:
    return key.partition("/")[2].removesuffix("_gib")


def _predicted(panel: Panel, data: ArmRuns, arm: str) -> Parts:
    """Medians over runs of their predictions, in GiB by metric key."""
    made = [run.record.prediction for run in data.runs_of(arm)]
    peaks = [
        {memory_key(category): num_bytes / GIB for category, num_bytes in one.peak.items()}
        for one in made
        if one is not None and one.peak is not None
    ]
    found = {key: [peak[key] for peak in peaks if key in peak] for key in panel.metrics}
    return {key: statistics.median(values) for key, values in found.items() if values}


def _part(
    key: str,
    bars: Mapping[Bar, Parts],
    seeds: Mapping[int, Mapping[Bar, Parts]],
    labels: Mapping[Bar, str],
    unit: AxisUnit,
    of: str,
) -> Trace:
    def lengths(shown: Mapping[Bar, Parts]) -> Trace:
        values = [shown.get(bar, {}).get(key) for bar in bars]
        xs = [None if value is None else value * unit.factor for value in values]
        return {"x": xs, "text": ["" if value is None else quantity(value, of) for value in values]}

    return {
        "type": "bar",
        "orientation": "h",
        **lengths(bars),
        "y": [arm_label(label) for label in labels.values()],
        "name": category(key),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": "#111111"},
        "hoverinfo": "text+name",
        "marker": {
            "color": CATEGORY_COLOURS.get(_bare(key), OTHER_COLOUR),
            "pattern": {
                "shape": ["/" if is_predicted else "" for _, is_predicted in bars],
                "fillmode": "overlay",
                "fgcolor": "#111111",
                "fgopacity": 0.25,
            },
            "line": {"width": 1, "color": "rgba(0,0,0,0.35)"},
        },
        "meta": {
            "arms": [arm for arm, _ in bars],
            "by_seed": by_seed({seed: lengths(of_seed) for seed, of_seed in seeds.items()}),
        },
    }


def _cell(parts: Parts, key: str, unit: str) -> str:
    return quantity(parts[key], unit) if key in parts else "-"
