"""Kind `changes`: the bytes that an arm saves and adds, by category."""

from collections.abc import Mapping, Sequence

from ampsweep.analysis.waterfall import Waterfall, waterfall
from ampsweep.report.figures.figure import (
    Layout,
    NoFigure,
    PanelFigure,
    Remarks,
    Style,
    Trace,
    arm_axis,
    by_seed,
    plotly_text,
    rows_height,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.sentences.memory_bytes import category, change
from ampsweep.report.table import figures_table
from ampsweep.report.units import AxisUnit, axis_unit
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import GIB

_ALL = "peak"
_ROOM_FOR_LABELS = 0.2
_ROOM_FOR_LABELS_PX = 56
"""Share of the axis on either side, and room right of it, for the figures at the ends of the bars."""


def show_changes(panel: Panel, data: WorkloadData, style: Style) -> PanelFigure | NoFigure:
    """For each category of memory a bar an arm, left of zero what it saves; below them the change of the whole peak."""
    found = {one.arm: one.waterfall for one in data.workload.verdict.arms if one.waterfall is not None}
    if not found:
        return NoFigure("no pair of runs has its memory by category")
    remarks = Remarks()
    changes = {arm: _changes(one) for arm, one in found.items()}
    seeds = {arm: _of_seeds(data, arm, style) for arm in found}
    all_changes = [*changes.values(), *(of_seed for of_arm in seeds.values() for of_seed in of_arm.values())]
    names = list(dict.fromkeys(one for of_one in all_changes for one in of_one if one != _ALL))
    names = [one for one in names if any(of_one.get(one) for of_one in all_changes)] + [_ALL]
    for arm, one in found.items():
        if not one.same_in_all_pairs:
            remarks.lines.append(f"{arm}: pairs differ; shown is that of seed {one.seed}, with the median change")
        if one.eager:
            remarks.lines.append(f"{arm}: of the step run eagerly, although the runs compiled it")
    values = [num_bytes / GIB for of_one in all_changes for num_bytes in of_one.values()]
    unit = axis_unit(values, "GiB")
    low, high = min(0.0, *values) * unit.factor, max(0.0, *values) * unit.factor
    room = _ROOM_FOR_LABELS * ((high - low) or 1.0)
    layout: Layout = {
        "xaxis": value_axis(f"peak memory, arm minus baseline ({unit.unit})", range=[low - room, high + room]),
        "yaxis": arm_axis([_label(one) for one in names]),
        "height": rows_height(len(names) * len(found), 26, legend=True),
        "margin": {"r": _ROOM_FOR_LABELS_PX},
        "barmode": "group",
        "bargap": 0.25,
        "legend": {"traceorder": "normal"},
        "shapes": [{"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper"}],
    }
    rows = [(_label(one), *(change(of_arm.get(one, 0)) for of_arm in changes.values())) for one in names]
    table = figures_table("category", list(changes), rows)
    traces = [_bars(arm, names, of_arm, seeds[arm], unit, style) for arm, of_arm in changes.items()]
    return PanelFigure(traces, layout, table, tuple(remarks.lines))


def _changes(of: Waterfall) -> dict[str, int]:
    return {step.category: step.change_bytes for step in of.steps} | {_ALL: of.arm_bytes - of.baseline_bytes}


def _of_seeds(data: WorkloadData, arm: str, style: Style) -> dict[int, Mapping[str, int]]:
    """The changes in the pairs of each seed."""
    found = {seed: waterfall(data.of_seed(seed).pairs_of(arm)) for seed in data.seeds if style.extent.has(seed)}
    return {seed: _changes(one) for seed, one in found.items() if one is not None}


def _bars(
    arm: str,
    names: Sequence[str],
    changes: Mapping[str, int],
    seeds: Mapping[int, Mapping[str, int]],
    unit: AxisUnit,
    style: Style,
) -> Trace:
    def lengths(of: Mapping[str, int]) -> Trace:
        sizes = [of.get(one, 0) for one in names]
        texts = [change(num_bytes) if num_bytes else "" for num_bytes in sizes]
        return {"x": [num_bytes / GIB * unit.factor for num_bytes in sizes], "text": texts}

    return {
        "type": "bar",
        "orientation": "h",
        **lengths(changes),
        "y": [_label(one) for one in names],
        "name": plotly_text(arm),
        "textposition": "auto",
        "textangle": 0,
        "insidetextanchor": "middle",
        "insidetextfont": {"color": "#111111"},
        "cliponaxis": False,
        "hoverinfo": "text+name",
        "marker": {"color": style.arms[arm].colour, "pattern": {"shape": style.arms[arm].pattern}},
        "meta": {"arm": arm, "by_seed": by_seed({seed: lengths(of_seed) for seed, of_seed in seeds.items()})},
    }


def _label(one: str) -> str:
    return "whole peak" if one == _ALL else category(one)
