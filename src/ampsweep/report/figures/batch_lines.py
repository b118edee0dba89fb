"""Kind `against_batch`: a metric of the summary over the batch size, over workloads that differ in nothing else."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampsweep.analysis.runs import Scalar
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
from ampsweep.report.table import Table
from ampsweep.report.units import AxisUnit, axis_unit, quantity
from ampsweep.report.workload_data import WorkloadData

_BATCH = "batch_size"
_FOLLOWS_BATCH = frozenset({_BATCH, "steps"})
"""Facts that change with the batch size: with a number of epochs the number of steps does."""


@dataclass(frozen=True)
class BatchSeries:
    """Workloads that differ in batch size only, by batch size, and what tells this series from the others."""

    title: str
    facts: dict[str, Scalar]
    compared: tuple[tuple[int, WorkloadData], ...]


def batch_series(compared: Sequence[WorkloadData]) -> list[BatchSeries]:
    """The series among `compared` that hold two batch sizes or more."""
    groups: dict[tuple[tuple[str, Scalar], ...], list[tuple[int, WorkloadData]]] = defaultdict(list)
    for data in compared:
        facts = data.workload.facts
        size = facts.get(_BATCH)
        if isinstance(size, int):
            rest = tuple((key, value) for key, value in facts.items() if key not in _FOLLOWS_BATCH)
            groups[rest].append((size, data))
    found = [(dict(rest), members) for rest, members in groups.items() if len({size for size, _ in members}) > 1]
    varied = [key for key in _keys(found) if len({facts.get(key) for facts, _ in found}) > 1]
    return [
        BatchSeries(
            ", ".join(f"{key} {facts[key]}" for key in varied if facts.get(key) is not None),
            facts,
            tuple(sorted(members, key=lambda member: member[0])),
        )
        for facts, members in found
    ]


def show_against_batch(panel: Panel, series: BatchSeries, style: Style) -> PanelFigure | NoFigure:
    """A line an arm through the medians over runs; a cross where its runs ran out of memory."""
    (key,) = panel.metrics
    arms = list(dict.fromkeys(one.arm for _, data in series.compared for one in data.arms))
    medians = {
        arm: [(size, value) for size, data in series.compared if (value := data.median_of(arm, key)) is not None]
        for arm in arms
    }
    values = [value for points in medians.values() for _, value in points]
    if not values:
        return NoFigure(f"no run measured {key}")
    unit = axis_unit(values, panel.unit)
    sizes = sorted({size for size, _ in series.compared})
    traces = [
        _line(arm, points, _of_seeds(arm, key, series), unit, panel, style) for arm, points in medians.items() if points
    ]
    lost = {arm: found for arm in arms if (found := _out_of_memory(arm, series))}
    traces += [
        _crosses(arm, where, max(values) * unit.factor * (1 - 0.07 * index), style)
        for index, (arm, where) in enumerate(lost.items())
    ]
    layout: Layout = {
        "xaxis": value_axis("batch size", type="log", tickvals=sizes, ticktext=[str(size) for size in sizes]),
        "yaxis": value_axis(axis_title(panel, unit.unit), rangemode="tozero"),
        "height": 360,
    }
    columns = [arm for arm in arms if medians[arm]]
    rows = [(str(size), *(_cell(dict(medians[arm]).get(size), panel.unit) for arm in columns)) for size in sizes]
    table = Table(("batch size", *columns), (True,) * (len(columns) + 1), tuple(rows))
    measured = {arm for _, data in series.compared for arm in data.measured_arms}
    remarks = [f"{arm}: {_why_none(arm, key, series)}" for arm in arms if not medians[arm] and arm in measured]
    for arm, where in lost.items():
        at = ", ".join(str(size) for size in sorted({size for size, _ in where}))
        remarks.append(f"{arm} ran out of memory at batch {at} (x)")
    return PanelFigure(traces, layout, table, tuple(remarks))


def _why_none(arm: str, key: str, series: BatchSeries) -> str:
    disturbed = any(data.contaminated(arm, key) for _, data in series.compared)
    return "every run is contaminated" if disturbed else "not measured"


def _of_seeds(arm: str, key: str, series: BatchSeries) -> dict[int, list[tuple[int, float]]]:
    """The points of each seed."""
    points: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for size, data in series.compared:
        for seed, value in data.by_seed(arm, key).items():
            points[seed].append((size, value))
    return points


def _line(
    arm: str,
    points: Sequence[tuple[int, float]],
    seeds: Mapping[int, Sequence[tuple[int, float]]],
    unit: AxisUnit,
    panel: Panel,
    style: Style,
) -> Trace:
    def line(through: Sequence[tuple[int, float]]) -> Trace:
        return {
            "x": [size for size, _ in through],
            "y": [value * unit.factor for _, value in through],
            "hovertext": [f"batch {size}: {quantity(value, panel.unit)}" for size, value in through],
        }

    drawn = style.arms[arm]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        **line(points),
        "name": plotly_text(arm),
        "hoverinfo": "text+name",
        "line": {"color": drawn.colour, "width": 2 + 1.5 * drawn.beneath, "dash": drawn.dash},
        "marker": {"color": drawn.colour, "symbol": drawn.symbol, "size": 8 + 2 * drawn.beneath},
        "meta": {"arm": arm, "by_seed": by_seed({seed: line(through) for seed, through in seeds.items()})},
    }


def _out_of_memory(arm: str, series: BatchSeries) -> list[tuple[int, int]]:
    """Batch sizes at which a run of the arm ended so, with its seed."""
    found = {(size, run.seed) for size, data in series.compared for run in data.runs_of(arm) if run.outcome == "oom"}
    return sorted(found)


def _crosses(arm: str, where: Sequence[tuple[int, int]], height: float, style: Style) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [size for size, _ in where],
        "y": [height] * len(where),
        "name": plotly_text(f"{arm}: out of memory"),
        "showlegend": False,
        "hovertext": [f"batch {size}, seed {seed}: out of memory" for size, seed in where],
        "hoverinfo": "text+name",
        "marker": {"color": style.arms[arm].colour, "symbol": "x", "size": 12},
        "meta": {"arm": arm, "seeds": [seed for _, seed in where]},
    }


def _keys(found: Sequence[tuple[dict[str, Scalar], object]]) -> list[str]:
    return list(dict.fromkeys(key for facts, _ in found for key in facts))


def _cell(value: float | None, unit: str) -> str:
    return "-" if value is None else quantity(value, unit)
