"""Kind `pairs`: a metric of the summary in each pair of runs, arm against baseline, with the mean and its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.statistics import Estimate, mean_difference, mean_ratio
from ampsweep.report.estimate_text import estimate, ratio_estimate
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
    plotly_text,
    rows_height,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.table import figures_table
from ampsweep.report.units import AxisUnit, axis_unit, quantity
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import number, ratio


@dataclass(frozen=True)
class _Effects:
    """One arm's effect in each of its pairs, in the metric's unit or as a ratio, and their mean."""

    arm: str
    by_seed: Sequence[tuple[int, float]]
    mean: Estimate


def show_pairs(panel: Panel, data: WorkloadData, style: Style) -> PanelFigure | NoFigure:
    """An arm a row: a dot a pair, a diamond at their mean with its 95% interval, a line where there is no effect."""
    others = [one.arm for one in data.arms if not one.is_baseline]
    found = [effects for arm in others if (effects := _effects(panel, data, arm)) is not None]
    if not found:
        return NoFigure(f"no arm has a pair of runs with the baseline that measured {panel.metrics[0]}")
    remarks = Remarks()
    shown = {one.arm for one in found}
    remarks.without([arm for arm in data.measured_arms if arm in others and arm not in shown], "no pair to compare")
    unit = AxisUnit(1.0, "x")
    if panel.effect != "ratio":
        unit = axis_unit((effect for one in found for _, effect in one.by_seed), panel.unit)
    null = 1.0 if panel.effect == "ratio" else 0.0
    parities = [_parity(panel, data, one.arm) for one in found]
    traces = [_decisive(one, parity, style) for one, parity in zip(found, parities, strict=True) if parity]
    traces += [trace for one in found for trace in _arm(one, panel, unit, style)]  # dots lie over the thick intervals
    layout: Layout = {
        "xaxis": value_axis(_title(panel, unit)),
        "yaxis": arm_axis([one.arm for one in found]),
        "height": rows_height(len(found)),
        "showlegend": False,
        "shapes": [
            {"type": "line", "x0": null, "x1": null, "y0": 0, "y1": 1, "yref": "paper", "line": {"dash": "dot"}},
            *(_margin(row, parity) for row, parity in enumerate(parities) if parity is not None),
        ],
    }
    rows = [_row(one, panel, parity) for one, parity in zip(found, parities, strict=True)]
    headers = ["mean", "95% interval", "pairs", *(["margin", "90% interval", "parity"] if any(parities) else [])]
    table = figures_table("arm", headers, rows)
    return PanelFigure(traces, layout, table, tuple(remarks.lines))


def _effects(panel: Panel, data: WorkloadData, arm: str) -> _Effects | None:
    (key,) = panel.metrics
    figures = [(pair.arm_runs[0].seed, both) for pair in data.pairs_of(arm) if (both := _figures(pair, key))]
    if panel.effect == "ratio":
        figures = [(seed, both) for seed, both in figures if min(both) > 0]
    if not figures:
        return None
    if panel.effect == "ratio":
        mean = mean_ratio([both for _, both in figures])
        return _Effects(arm, [(seed, baseline / of_arm) for seed, (baseline, of_arm) in figures], mean)
    sign = -1 if panel.effect == "saved" else 1
    gaps = [(seed, sign * (of_arm - baseline)) for seed, (baseline, of_arm) in figures]
    return _Effects(arm, gaps, mean_difference([gap for _, gap in gaps]))


def _figures(pair: Pair, key: str) -> tuple[float, float] | None:
    """The pair's figures as the comparison takes them: time of undisturbed runs, losses of finished ones."""
    if key.startswith("perf/"):
        return pair.speed_figures(key)
    return pair.final_figures(key) if key.startswith(("train/", "val/")) else pair.figures(key)


def _arm(effects: _Effects, panel: Panel, unit: AxisUnit, style: Style) -> list[Trace]:
    label, arm, mean = arm_label(effects.arm), style.arms[effects.arm], effects.mean
    dots: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [effect * unit.factor for _, effect in effects.by_seed],
        "y": [label] * len(effects.by_seed),
        "name": plotly_text(effects.arm),
        "hovertext": [f"seed {seed}: {_text(effect, panel)}" for seed, effect in effects.by_seed],
        "hoverinfo": "text+name",
        "opacity": 0.75,
        "marker": {"color": arm.colour, "symbol": arm.symbol, "size": 9, "line": {"width": 1, "color": "#333333"}},
        "meta": {"arm": effects.arm, "seeds": [seed for seed, _ in effects.by_seed]},
    }
    middle: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [mean.value * unit.factor],
        "y": [label],
        "name": plotly_text(effects.arm),
        "hovertext": [f"mean {_text(mean.value, panel)} {_interval(mean, panel)}"],
        "hoverinfo": "text+name",
        "marker": {"color": arm.colour, "symbol": "diamond-tall", "size": 18, "line": {"width": 2, "color": "#333333"}},
        "meta": {"arm": effects.arm, "over_seeds": True},
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


def _decisive(effects: _Effects, parity: Parity, style: Style) -> Trace:
    """The interval that decides parity, thick over the thin one."""
    ends = [end for end in (parity.low, parity.high) if end is not None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": [arm_label(effects.arm)] * len(ends),
        "name": plotly_text(effects.arm),
        "hoverinfo": "skip",
        "line": {"color": style.arms[effects.arm].colour, "width": 7},
        "opacity": 0.8,
        "meta": {"arm": effects.arm, "over_seeds": True},
    }


def _title(panel: Panel, unit: AxisUnit) -> str:
    match panel.effect:
        case "ratio":
            return f"{axis_title(panel, '')}, baseline over arm (x)"
        case "saved":
            return f"{axis_title(panel, '')}, baseline minus arm" + (f" ({unit.unit})" if unit.unit else "")
        case "gap":
            return f"{axis_title(panel, '')}, arm minus baseline" + (f" ({unit.unit})" if unit.unit else "")


def _row(effects: _Effects, panel: Panel, parity: Parity | None) -> tuple[str, ...]:
    mean = effects.mean
    row = (effects.arm, _mean(mean, panel), _interval(mean, panel) or "-", str(mean.n))
    if parity is None:
        return row
    return (*row, f"±{number(parity.margin, 2)}", _interval(gap(parity), panel) or "-", parity.verdict)


def _mean(of: Estimate, panel: Panel) -> str:
    """The mean in the digits of its interval."""
    if panel.effect == "ratio":
        return f"{ratio_estimate(of)[0]}x"
    return estimate(of, digits=2, sign=True)[0] if panel.unit == "" else _text(of.value, panel)


def _interval(of: Estimate, panel: Panel) -> str:
    if of.interval is None:
        return "exact" if of.exact else ""
    if panel.effect == "ratio" or panel.unit == "":
        _, ends = ratio_estimate(of) if panel.effect == "ratio" else estimate(of, digits=2, sign=True)
        assert ends is not None
        return f"[{ends[0]}, {ends[1]}]"
    return f"[{', '.join(_text(end, panel) for end in of.interval)}]"


def _text(effect: float, panel: Panel) -> str:
    if panel.effect == "ratio":
        return ratio(effect)
    return quantity(effect, panel.unit, sign=panel.effect == "gap")
