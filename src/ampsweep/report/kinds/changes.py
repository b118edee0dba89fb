"""Kind `changes`: which bytes an arm saves and which it adds, category by category."""

from collections.abc import Mapping

from ampsweep.analysis.runs import GIB
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.report.kinds.shown import (
    Absent,
    Layout,
    Remarks,
    Shown,
    Style,
    Trace,
    arm_axis,
    plotly_text,
    rows_height,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.subject import Subject
from ampsweep.report.table import figures_table
from ampsweep.report.units import AxisUnit, axis_unit
from ampsweep.report.verdict_lines import category, change

_ALL = "peak"
_ROOM_FOR_LABELS = 0.2
"""Share of the axis on either side for the figures at the ends of the bars."""


def show_changes(panel: Panel, subject: Subject, style: Style) -> Shown | Absent:
    """For each category of memory a bar an arm, left of zero what it saves; below them the change of the whole peak."""
    found = {one.arm: one.waterfall for one in subject.workload.verdict.arms if one.waterfall is not None}
    if not found:
        return Absent("no pair of runs has its memory by category")
    remarks = Remarks()
    changes = {arm: _changes(waterfall) for arm, waterfall in found.items()}
    names = list(dict.fromkeys(one for of_arm in changes.values() for one in of_arm if one != _ALL))
    names = [one for one in names if any(of_arm.get(one) for of_arm in changes.values())] + [_ALL]
    for arm, waterfall in found.items():
        if not waterfall.same_in_all_pairs:
            remarks.lines.append(f"{arm}: pairs differ; shown is that of seed {waterfall.seed}, with the median change")
        if waterfall.eager:
            remarks.lines.append(f"{arm}: of the step run eagerly, although the runs compiled it")
    values = [num_bytes / GIB for of_arm in changes.values() for num_bytes in of_arm.values()]
    unit = axis_unit(values, "GiB")
    low, high = min(0.0, *values) * unit.factor, max(0.0, *values) * unit.factor
    room = _ROOM_FOR_LABELS * ((high - low) or 1.0)
    layout: Layout = {
        "xaxis": value_axis(f"peak memory, arm minus baseline ({unit.unit})", range=[low - room, high + room]),
        "yaxis": arm_axis([_label(one) for one in names]),
        "height": rows_height(len(names) * len(found), 24, legend=True),
        "barmode": "group",
        "bargap": 0.25,
        "legend": {"traceorder": "normal"},
        "shapes": [{"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper"}],
    }
    rows = [(_label(one), *(change(of_arm.get(one, 0)) for of_arm in changes.values())) for one in names]
    table = figures_table("category", list(changes), rows)
    traces = [_bars(arm, {one: of_arm.get(one, 0) for one in names}, unit, style) for arm, of_arm in changes.items()]
    return Shown(traces, layout, table, tuple(remarks.lines))


def _changes(waterfall: Waterfall) -> dict[str, int]:
    changes = {step.category: step.change_bytes for step in waterfall.steps}
    return changes | {_ALL: waterfall.arm_bytes - waterfall.baseline_bytes}


def _bars(arm: str, changes: Mapping[str, int], unit: AxisUnit, style: Style) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "x": [num_bytes / GIB * unit.factor for num_bytes in changes.values()],
        "y": [_label(one) for one in changes],
        "name": plotly_text(arm),
        "text": [change(num_bytes) if num_bytes else "" for num_bytes in changes.values()],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "text+name",
        "marker": {"color": style.arms[arm].colour, "pattern": {"shape": style.arms[arm].pattern}},
        "meta": {"arm": arm},
    }


def _label(one: str) -> str:
    return "whole peak" if one == _ALL else category(one)
