"""Kind `pairs`: a metric of the summary in each pair of runs, arm against baseline, with the mean and its interval."""

from ampsweep.analysis.parity import Parity
from ampsweep.analysis.statistics import Estimate
from ampsweep.report.figures.effects import (
    NULL,
    Effects,
    effect_text,
    effect_title,
    effect_unit,
    effects,
    interval_text,
    mean_text,
)
from ampsweep.report.figures.figure import (
    Layout,
    NoFigure,
    PanelFigure,
    Remarks,
    Style,
    Trace,
    arm_axis,
    arm_label,
    plotly_text,
    rows_height,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.table import figures_table
from ampsweep.report.units import AxisUnit, axis_unit
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import number


def show_pairs(panel: Panel, data: WorkloadData, style: Style) -> PanelFigure | NoFigure:
    """An arm a row: a dot a pair, a diamond at their mean with its 95% interval, a line where there is no effect."""
    others = [one.arm for one in data.arms if not one.is_baseline]
    found = [of_arm for arm in others if (of_arm := effects(panel, data, arm)) is not None]
    if not found:
        return NoFigure(f"no arm has a pair of runs with the baseline that measured {panel.metrics[0]}")
    remarks = Remarks()
    shown = {one.arm for one in found}
    remarks.without([arm for arm in data.measured_arms if arm in others and arm not in shown], "no pair to compare")
    unit = axis_unit((effect for one in found for _, effect in one.by_seed), effect_unit(panel))
    null = NULL[panel.effect]
    parities = [_parity(panel, data, one.arm) for one in found]
    traces = [_decisive(one, parity, style) for one, parity in zip(found, parities, strict=True) if parity]
    traces += [trace for one in found for trace in _arm(one, panel, unit, style)]  # dots lie over the thick intervals
    layout: Layout = {
        "xaxis": value_axis(effect_title(panel, unit.unit)),
        "yaxis": arm_axis([one.arm for one in found]),
        "height": rows_height(len(found)),
        "showlegend": False,
        "shapes": [
            {"type": "line", "x0": null, "x1": null, "y0": 0, "y1": 1, "yref": "paper", "line": {"dash": "dot"}},
            *(_margin(row, parity) for row, parity in enumerate(parities) if parity is not None),
        ],
    }
    remarks.of_dots(max(len(one.by_seed) for one in found), style)
    rows = [_row(one, panel, parity) for one, parity in zip(found, parities, strict=True)]
    headers = ["mean", "95% interval", "pairs", *(["margin", "90% interval", "parity"] if any(parities) else [])]
    table = figures_table("arm", headers, rows)
    return PanelFigure(traces, layout, table, tuple(remarks.lines))


def _arm(of: Effects, panel: Panel, unit: AxisUnit, style: Style) -> list[Trace]:
    label, arm, mean = arm_label(of.arm), style.arms[of.arm], of.mean
    drawn = style.extent.dots(of.by_seed)
    dots: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [effect * unit.factor for _, effect in drawn],
        "y": [label] * len(drawn),
        "name": plotly_text(of.arm),
        "hovertext": [f"seed {seed}: {effect_text(effect, panel)}" for seed, effect in drawn],
        "hoverinfo": "text+name",
        "opacity": 0.75,
        "marker": {"color": arm.colour, "symbol": arm.symbol, "size": 9, "line": {"width": 1, "color": "#333333"}},
        "meta": {"arm": of.arm, "seeds": [seed for seed, _ in drawn]},
    }
    middle: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [mean.value * unit.factor],
        "y": [label],
        "name": plotly_text(of.arm),
        "hovertext": [f"mean {effect_text(mean.value, panel)} {interval_text(mean, panel)}"],
        "hoverinfo": "text+name",
        "marker": {"color": arm.colour, "symbol": "diamond-tall", "size": 18, "line": {"width": 2, "color": "#333333"}},
        "meta": {"arm": of.arm, "over_seeds": True},
    }
    if mean.interval is not None:
        low, high = mean.interval
        middle["error_x"] = {
            "type": "data",
            "array": [(high - mean.value) * unit.factor],
            "arrayminus": [(mean.value - low) * unit.factor],
            "color": arm.colour,
            "thickness": 2,
            "width": 9,
        }
    return [middle, dots]


def _parity(panel: Panel, data: WorkloadData, arm: str) -> Parity | None:
    """The parity of the metric, where the comparison judges it."""
    verdict = next((one for one in data.workload.verdict.arms if one.arm == arm), None)
    return next((one for one in verdict.parities if one.metric == panel.metrics[0]), None) if verdict else None


def gap(parity: Parity) -> Estimate:
    """The gap with the 90% interval that decides parity; exact where it is the same in every pair."""
    if parity.low == parity.high:
        return Estimate(value=parity.gap, n=parity.n, exact=parity.low is not None)
    return Estimate(value=parity.gap, n=parity.n, low=parity.low, high=parity.high)


def _margin(row: int, parity: Parity) -> Layout:
    return {
        "type": "rect",
        "layer": "below",
        "x0": -parity.margin,
        "x1": parity.margin,
        "y0": row - 0.4,
        "y1": row + 0.4,
        "line": {"width": 0},
        "fillcolor": "rgba(128,128,128,0.22)",
    }


def _decisive(of: Effects, parity: Parity, style: Style) -> Trace:
    """The interval that decides parity, thick over the thin one."""
    ends = [end for end in (parity.low, parity.high) if end is not None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": [arm_label(of.arm)] * len(ends),
        "name": plotly_text(of.arm),
        "hoverinfo": "skip",
        "line": {"color": style.arms[of.arm].colour, "width": 7},
        "opacity": 0.8,
        "meta": {"arm": of.arm, "over_seeds": True},
    }


def _row(of: Effects, panel: Panel, parity: Parity | None) -> tuple[str, ...]:
    mean = of.mean
    row = (of.arm, mean_text(mean, panel), interval_text(mean, panel) or "-", str(mean.n))
    if parity is None:
        return row
    return (*row, f"±{number(parity.margin, 2)}", interval_text(gap(parity), panel) or "-", parity.verdict)
