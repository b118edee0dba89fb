"""Kind `stack`: metrics of the summary that add up to one, predicted beside measured."""

from collections.abc import Mapping, Sequence
from typing import Final

from ampsweep.analysis.runs import PEAK_MEMORY, Run
from ampsweep.analysis.waterfall import UNATTRIBUTED
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
"""Metric key -> value, of those that are known; and what they lack of the whole."""

_REST: Final = memory_key(UNATTRIBUTED)
_WHAT_THE_REST_IS: Final = (
    "unattributed: what the run's peak has besides the tensors of the traced step, such as workspaces of kernels and "
    "the rounding of allocations"
)


def show_stack(panel: Panel, data: ArmRuns, style: Style) -> PanelFigure | NoFigure:
    """A bar an arm, its metrics stacked, of the run with the median whole; below it, striped, what was predicted."""
    bars = _bars(panel, data)
    if not bars:
        return not_measured(panel)
    remarks = Remarks()
    remarks.without([arm for arm in data.measured_arms if (arm, False) not in bars])
    unit = axis_unit((sum(parts.values()) for parts in bars.values()), panel.unit)
    used = [key for key in (*panel.metrics, _REST) if any(parts.get(key) for parts in bars.values())]
    if _REST in used:
        remarks.lines.append(_WHAT_THE_REST_IS)
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
    seeds = {seed: _bars(panel, data.of_seed(seed)) for seed in data.seeds if style.extent.has(seed)}
    traces = [_part(key, bars, seeds, labels, unit, panel.unit) for key in used]
    return PanelFigure(traces, layout, table, tuple(remarks.lines))


def _bars(panel: Panel, data: ArmRuns) -> dict[Bar, Parts]:
    bars: dict[Bar, Parts] = {}
    for arm in data.names:
        runs = data.runs_of(arm)
        if measured := _middle([_measured(panel, run) for run in runs if run.measured]):
            bars[arm, False] = measured
        if predicted := _middle([_predicted(panel, run) for run in runs]):
            bars[arm, True] = predicted
    return bars


def _middle(of_runs: Sequence[Parts]) -> Parts:
    """The parts of the run with the median whole, so that they add up; of two in the middle the smaller."""
    known = sorted((parts for parts in of_runs if parts), key=lambda parts: sum(parts.values()))
    return known[(len(known) - 1) // 2] if known else {}


def _measured(panel: Panel, run: Run) -> Parts:
    parts = {key: value for key in panel.metrics if (value := run.figure(key)) is not None}
    return _with_rest(parts, run.figure(panel.whole) if panel.whole else None)


def _predicted(panel: Panel, run: Run) -> Parts:
    prediction = run.record.prediction
    if prediction is None or prediction.peak is None:
        return {}
    of_keys = {memory_key(category): num_bytes / GIB for category, num_bytes in prediction.peak.items()}
    parts = {key: of_keys[key] for key in panel.metrics if key in of_keys}
    whole = run.predicted_bytes if panel.whole == PEAK_MEMORY else None
    return _with_rest(parts, None if whole is None else whole / GIB)


def _with_rest(parts: Parts, whole: float | None) -> Parts:
    """The parts, with what they lack of the whole."""
    rest = 0.0 if whole is None else round((whole - sum(parts.values())) * GIB) / GIB
    return {**parts, _REST: rest} if parts and rest > 0 else parts


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
