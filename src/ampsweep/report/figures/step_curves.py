"""Kind `curves`: a metric of the history over the steps."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ampsweep.analysis.runs import Run
from ampsweep.metrics import METRICS
from ampsweep.report.curves import Band, Curve, band, short_numbers
from ampsweep.report.figures.figure import (
    Layout,
    NoFigure,
    PanelFigure,
    Remarks,
    Style,
    Trace,
    axis_title,
    plotly_text,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.table import figures_table
from ampsweep.report.units import quantity
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import listed

MAX_LINES: Final = 8
"""An arm with more runs shows their band alone, and a single run's line when its seed is chosen."""


def show_curves(panel: Panel, data: WorkloadData, style: Style) -> PanelFigure | NoFigure:
    """Each run a thin line; for an arm with several finished runs their mean, in the band from lowest to highest."""
    (key,) = panel.metrics
    remarks = Remarks()
    traces: list[Trace] = []
    rows: list[tuple[str, ...]] = []
    longest, is_all = 0, True
    absent = []
    for arm in (one.arm for one in data.arms):
        drawn = [(run, curve) for run in data.runs_of(arm) if (curve := data.curve_of(run, key)) is not None]
        finite = [(run, curve) for run, curve in drawn if np.isfinite(curve.values).any()]
        if not drawn:
            absent += [arm] if arm in data.measured_arms else []
            continue
        if len(finite) < len(drawn):
            left = sorted({run.seed for run, _ in drawn} - {run.seed for run, _ in finite})
            remarks.lines.append(f"{arm}: never a finite value{_seeds(left)}")
        longest = max(longest, *(len(curve) for _, curve in drawn))
        of_arm = _arm(arm, finite, data.histories.partial, panel, style)
        is_all = is_all and sum("seed" in trace["meta"] for trace in of_arm) == len(finite)
        traces += of_arm
        rows += [_row(arm, [curve for _, curve in finite], panel)] if finite else []
    if not any(len(trace["x"]) > 1 for trace in traces):
        return _nothing(panel, key, bool(traces))
    remarks.without(absent, "not logged")
    if not is_all:
        remarks.lines.append("single runs are drawn of the seeds that can be chosen; bands and figures are of all")
    if longest > style.extent.max_points:
        remarks.lines.append(
            f"curves of up to {longest} logged steps are thinned to {style.extent.max_points} points: the lowest and "
            "the highest value of each stretch"
        )
    table = figures_table("arm", ["last value", "lowest", "highest", "runs"], rows)
    return PanelFigure(traces, _layout(panel), table, tuple(remarks.lines))


def _nothing(panel: Panel, key: str, has_points: bool) -> NoFigure:
    if has_points:
        return NoFigure(f"{key} was logged once a run: no curve")
    meaning = METRICS[key].meaning if key in METRICS else key
    return NoFigure(f"no run logged {key} ({meaning})")


def _arm(
    arm: str, drawn: Sequence[tuple[Run, Curve]], partial: Collection[Path], panel: Panel, style: Style
) -> list[Trace]:
    whole = band([curve for run, curve in drawn if run.finished and run.directory not in partial])
    traces = _band(arm, whole.thinned(style.extent.max_points), style, panel) if whole is not None else []
    is_crowded = whole is not None and len(drawn) > MAX_LINES
    for index, (run, curve) in enumerate(_alone(drawn, style, has_band=whole is not None)):
        trace = _run(run, curve.thinned(style.extent.max_points), style, legend=whole is None and index == 0)
        if is_crowded and run.finished:
            trace["meta"]["only_alone"] = True
        traces.append(trace)
    return traces


def _alone(drawn: Sequence[tuple[Run, Curve]], style: Style, *, has_band: bool) -> list[tuple[Run, Curve]]:
    """The runs with a line of their own: of the seeds that can be chosen, and some that are in no band."""
    not_in_band = [run for run, _ in drawn if not (has_band and run.finished)][:MAX_LINES]
    kept = {run.directory for run in not_in_band}
    return [(run, curve) for run, curve in drawn if style.extent.has(run.seed) or run.directory in kept]


def _band(arm: str, whole: Band, style: Style, panel: Panel) -> list[Trace]:
    steps = short_numbers(whole.steps)
    colour = style.arms[arm].colour
    common: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": steps,
        "legendgroup": arm,
        "meta": {"arm": arm, "over_seeds": True},
    }
    edge = {**common, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    dash = style.arms[arm].dash
    return [
        {**edge, "y": short_numbers(whole.low)},
        {**edge, "y": short_numbers(whole.high), "fill": "tonexty", "fillcolor": _faint(colour)},
        {
            **common,
            "y": short_numbers(whole.mean),
            "name": plotly_text(arm),
            "line": {"color": colour, "width": 2 + 0.8 * style.arms[arm].beneath, "dash": dash},
        },
    ]


def _run(run: Run, curve: Curve, style: Style, *, legend: bool) -> Trace:
    arm = style.arms[run.arm]
    drawn: Trace = {"mode": "lines"}
    if len(curve) == 1:
        drawn = {"mode": "markers", "marker": {"color": arm.colour, "symbol": arm.symbol}}
    return {
        **drawn,
        "type": "scatter",
        "x": short_numbers(curve.steps),
        "y": short_numbers(curve.values),
        "name": plotly_text(run.arm),  # of all runs: the legend names an arm by one of them
        "hovertemplate": f"step %{{x}}: %{{y}}<extra>{_label(run)}</extra>",
        "legendgroup": run.arm,
        "showlegend": legend,
        "opacity": 0.9 if legend or not run.finished else 0.45,
        "line": {"color": arm.colour, "width": 1.2, "dash": arm.dash if run.finished else "dot"},
        "meta": {"arm": run.arm, "seed": run.seed},
    }


def _label(run: Run) -> str:
    label = f"{run.arm}, seed {run.seed}" + ("" if run.finished else f", {run.outcome}")
    return plotly_text(label).replace("%{", "%&#123;")  # nothing in an arm is a field of a template


def _row(arm: str, curves: Sequence[Curve], panel: Panel) -> tuple[str, ...]:
    """The curves in figures: the median of the runs' last finite values, and the ends of all values."""
    finite = [curve.values[np.isfinite(curve.values)] for curve in curves]
    figures = (
        float(np.median([values[-1] for values in finite])),
        min(float(values.min()) for values in finite),
        max(float(values.max()) for values in finite),
    )
    return arm, *(quantity(figure, panel.unit) for figure in figures), str(len(curves))


def _layout(panel: Panel) -> Layout:
    # Ticks at 1, 2 and 5 of each decade, each with its whole figure: Plotly's own are bare digits between decades.
    log = {"type": "log", "dtick": "D2", "tickformat": "~g"} if panel.log else {"rangemode": "nonnegative"}
    return {
        "xaxis": value_axis("step"),
        "yaxis": value_axis(axis_title(panel, panel.unit), **log),
        "height": 340,
        "hovermode": "closest",
    }


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _seeds(seeds: Sequence[int]) -> str:
    return f" ({'seed' if len(seeds) == 1 else 'seeds'} {listed(map(str, seeds))})" if seeds else ""
