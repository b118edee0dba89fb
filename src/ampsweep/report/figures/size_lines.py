"""Kinds `against_size` and `effects_against_size`: a metric, or its effect in pairs, over a size that was varied."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.size_series import SizeSeries, is_multiple
from ampsweep.analysis.size_steps import Size
from ampsweep.report.figures.effects import (
    NULL,
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
    Style,
    Trace,
    axis_title,
    by_seed,
    plotly_text,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.sentences.sizes import marker_note, multiple_cells, out_of_memory_there, size_name, size_text
from ampsweep.report.table import Table
from ampsweep.report.units import axis_unit, quantity
from ampsweep.report.workload_data import WorkloadData

_MIN_TICK_DISTANCE: Final = 0.07
"""Share of the axis within which labels of sizes would cover each other: they are one label then."""


_ARMS_WIDTH: Final = 0.5
"""Share of the distance between two words that the points of all arms take."""


@dataclass(frozen=True)
class SeriesData:
    """A series of sizes with the data of its workloads, in the same order."""

    series: SizeSeries
    data: tuple[WorkloadData, ...]

    @property
    def compared(self) -> list[tuple[Size, WorkloadData]]:
        return list(zip(self.series.sizes, self.data, strict=True))

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm for data in self.data for arm in data.names))

    def position(self, arm: str, size: Size) -> float:
        """The place of a point on the axis: the size; of words their number, the arms of each beside each other."""
        if not isinstance(size, str):
            return size
        aside = self.arms.index(arm) - (len(self.arms) - 1) / 2
        return self.series.sizes.index(size) + _ARMS_WIDTH * aside / len(self.arms)

    def is_open(self, size: Size) -> bool:
        """True for the marker of a size of tensors that is no multiple of 8."""
        return self.series.of_tensors and not is_multiple(size)


@dataclass(frozen=True)
class _Point:
    """A figure of one arm at one size, and that of each seed."""

    size: Size
    value: float
    text: str
    seeds: Mapping[int, float]
    interval: tuple[float, float] | None = None


def show_against_size(panel: Panel, of: SeriesData, style: Style) -> PanelFigure | NoFigure:
    """A line an arm through the medians over runs; a cross where its runs ran out of memory."""
    (key,) = panel.metrics
    points = {arm: [one for size, data in of.compared if (one := _median(arm, size, data, panel))] for arm in of.arms}
    known = [one.value for line in points.values() for one in line]
    if not known:
        return NoFigure(f"no run measured {key}")
    unit = axis_unit(known, panel.unit)
    lost = {arm: where for arm in of.arms if (where := _out_of_memory(arm, of))}
    traces = [
        _line(arm, line, unit.factor, lambda value: quantity(value, panel.unit), of, style)
        for arm, line in points.items()
        if line
    ]
    traces += [
        _crosses(arm, where, max(known) * unit.factor * (1 - 0.07 * index), of, style)
        for index, (arm, where) in enumerate(lost.items())
    ]
    layout: Layout = {
        "xaxis": _size_axis(of.series),
        "yaxis": value_axis(axis_title(panel, unit.unit), rangemode="tozero"),
        "height": 360,
        **_legend(of.series),
    }
    remarks = _missing(of.arms, points, key, of)
    remarks += [out_of_memory_there(arm, of.series, [size for size, _ in where]) for arm, where in lost.items()]
    return PanelFigure(traces, layout, _table(of, points), tuple(remarks))


def show_effects_against_size(panel: Panel, of: SeriesData, style: Style) -> PanelFigure | NoFigure:
    """A line an arm through the means over pairs, with their 95% intervals; a dotted one where there is no effect."""
    (key,) = panel.metrics
    baselines = {one.arm for data in of.data for one in data.arms if one.is_baseline}
    arms = [arm for arm in of.arms if arm not in baselines]
    points = {arm: [one for size, data in of.compared if (one := _effect(arm, size, data, panel))] for arm in arms}
    if not any(points.values()):
        return NoFigure(f"no arm has a pair of runs with the baseline that measured {key}")
    null = NULL[panel.effect]
    layout: Layout = {
        "xaxis": _size_axis(of.series),
        "yaxis": value_axis(effect_title(panel, effect_unit(panel))),
        "height": 360,
        "shapes": [
            {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": null, "y1": null, "line": {"dash": "dot"}}
        ],
        **_legend(of.series),
    }
    traces = [
        _line(arm, line, 1.0, lambda value: effect_text(value, panel), of, style)
        for arm, line in points.items()
        if line
    ]
    remarks = _missing(arms, points, key, of, otherwise="no pair to compare")
    return PanelFigure(traces, layout, _table(of, points), tuple(remarks))


def _median(arm: str, size: Size, data: WorkloadData, panel: Panel) -> _Point | None:
    (key,) = panel.metrics
    value = data.median_of(arm, key)
    return None if value is None else _Point(size, value, quantity(value, panel.unit), data.by_seed(arm, key))


def _effect(arm: str, size: Size, data: WorkloadData, panel: Panel) -> _Point | None:
    found = effects(panel, data, arm)
    if found is None:
        return None
    seeds: dict[int, list[float]] = defaultdict(list)
    for seed, value in found.by_seed:
        seeds[seed].append(value)
    mean, interval = found.mean, interval_text(found.mean, panel)
    text = f"{mean_text(mean, panel)}{f' {interval}' if interval else ''}, n={mean.n}"
    by_seed = {seed: statistics.median(values) for seed, values in seeds.items()}
    return _Point(size, mean.value, text, by_seed, mean.interval)


def _line(
    arm: str, points: Sequence[_Point], factor: float, written: Callable[[float], str], of: SeriesData, style: Style
) -> Trace:
    drawn = style.arms[arm]

    def line(through: Sequence[tuple[Size, float, str]]) -> Trace:
        return {
            "x": [of.position(arm, size) for size, _, _ in through],
            "y": [value * factor for _, value, _ in through],
            "hovertext": [f"{size_text(size)}: {text}" for size, _, text in through],
            "symbol": [f"{drawn.symbol}-open" if of.is_open(size) else drawn.symbol for size, _, _ in through],
        }

    of_all = line([(one.size, one.value, one.text) for one in points])
    symbols = of_all.pop("symbol")
    seeds = sorted({seed for one in points for seed in one.seeds if style.extent.has(seed)})
    alone = {
        seed: line([(one.size, one.seeds[seed], written(one.seeds[seed])) for one in points if seed in one.seeds])
        for seed in seeds
    }
    trace: Trace = {
        "type": "scatter",
        "mode": "markers" if of.series.in_words else "lines+markers",
        **of_all,
        "name": plotly_text(arm),
        "hoverinfo": "text+name",
        "line": {"color": drawn.colour, "width": 2 + 1.5 * drawn.beneath, "dash": drawn.dash},
        "marker": {"color": drawn.colour, "symbol": symbols, "size": 9 + 2 * drawn.beneath, "line": {"width": 2}},
        "meta": {"arm": arm, "by_seed": by_seed(alone)},
    }
    if any(one.interval is not None for one in points):
        ends = [one.interval or (one.value, one.value) for one in points]
        trace["error_y"] = {
            "type": "data",
            "array": [(high - one.value) * factor for one, (_, high) in zip(points, ends, strict=True)],
            "arrayminus": [(one.value - low) * factor for one, (low, _) in zip(points, ends, strict=True)],
            "color": drawn.colour,
            "thickness": 1.5,
            "width": 6,
        }
    return trace


def _size_axis(series: SizeSeries) -> Layout:
    """A logarithmic axis with the sizes as labels, those close to each other in one."""
    if series.in_words:
        places = list(range(len(series.sizes)))
        labels = [plotly_text(size_text(size)) for size in series.sizes]
        ends = [-0.5, len(places) - 0.5]
        return value_axis(size_name(series), tickangle=0, tickvals=places, ticktext=labels, range=ends, showgrid=False)
    sizes = [size for size in series.sizes if not isinstance(size, str)]
    if min(sizes) <= 0:
        return value_axis(size_name(series))
    span = math.log(max(sizes) / min(sizes))
    close: list[list[float]] = []
    for size in sizes:
        if close and math.log(size / close[-1][-1]) < _MIN_TICK_DISTANCE * span:
            close[-1].append(size)
        else:
            close.append([size])
    return value_axis(
        size_name(series),
        type="log",
        tickangle=0,
        tickvals=[math.sqrt(near[0] * near[-1]) for near in close],
        ticktext=["<br>".join(map(size_text, near)) for near in close],
    )


def _table(of: SeriesData, points: Mapping[str, Sequence[_Point]]) -> Table:
    columns = {arm: {one.size: one.text for one in line} for arm, line in points.items() if line}
    kinds = multiple_cells(of.series)
    headers = (size_name(of.series), *(("multiple of 8",) if kinds else ()), *columns)
    rows = tuple(
        (size_text(size), *kinds[index : index + 1], *(texts.get(size, "-") for texts in columns.values()))
        for index, size in enumerate(of.series.sizes)
    )
    return Table(headers, (True,) * len(headers), rows)


def _missing(
    arms: Sequence[str],
    points: Mapping[str, Sequence[_Point]],
    key: str,
    of: SeriesData,
    otherwise: str = "not measured",
) -> list[str]:
    """Say of measured arms without a point why they have none."""
    measured = {arm for data in of.data for arm in data.measured_arms}
    lines = []
    for arm in arms:
        if not points[arm] and arm in measured:
            disturbed = any(data.contaminated(arm, key) for data in of.data)
            lines.append(f"{arm}: {'every run is contaminated' if disturbed else otherwise}")
    return lines


def _legend(series: SizeSeries) -> Layout:
    note = marker_note(series)
    return {"showlegend": True, **({} if note is None else {"legend": {"title": {"text": note, "side": "top"}}})}


def _out_of_memory(arm: str, of: SeriesData) -> list[tuple[Size, int]]:
    """Sizes at which a run of the arm ended so, with its seed."""
    return [
        (size, seed)
        for size, data in of.compared
        for seed in sorted({run.seed for run in data.runs_of(arm) if run.outcome == "oom"})
    ]


def _crosses(arm: str, where: Sequence[tuple[Size, int]], height: float, of: SeriesData, style: Style) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [of.position(arm, size) for size, _ in where],
        "y": [height] * len(where),
        "name": plotly_text(f"{arm}: out of memory"),
        "showlegend": False,
        "hovertext": [f"{size_text(size)}, seed {seed}: out of memory" for size, seed in where],
        "hoverinfo": "text+name",
        "marker": {"color": style.arms[arm].colour, "symbol": "x", "size": 12},
        "meta": {"arm": arm, "seeds": [seed for _, seed in where]},
    }
