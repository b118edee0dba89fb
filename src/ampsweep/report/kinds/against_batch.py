"""Kind `against_batch`: a metric of the summary over the batch size, over workloads that differ in nothing else."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ampsweep.analysis.runs import Scalar
from ampsweep.report.kinds.shown import (
    Absent,
    Layout,
    Shown,
    Style,
    Trace,
    axis_title,
    plotly_text,
    value_axis,
)
from ampsweep.report.panels import Panel
from ampsweep.report.subject import Subject
from ampsweep.report.table import Table
from ampsweep.report.units import AxisUnit, axis_unit, quantity

_BATCH = "batch_size"
_FOLLOWS_BATCH = frozenset({_BATCH, "steps"})
"""Facts that change with the batch size: with a number of epochs the number of steps does."""


@dataclass(frozen=True)
class Series:
    """Workloads that differ in batch size only, by batch size, and what tells this series from the others."""

    title: str
    facts: dict[str, Scalar]
    subjects: tuple[tuple[int, Subject], ...]


def batch_series(subjects: Sequence[Subject]) -> list[Series]:
    """The series among `subjects` that hold two batch sizes or more."""
    groups: dict[tuple[tuple[str, Scalar], ...], list[tuple[int, Subject]]] = defaultdict(list)
    for subject in subjects:
        facts = subject.workload.facts
        size = facts.get(_BATCH)
        if isinstance(size, int):
            rest = tuple((key, value) for key, value in facts.items() if key not in _FOLLOWS_BATCH)
            groups[rest].append((size, subject))
    found = [(dict(rest), members) for rest, members in groups.items() if len({size for size, _ in members}) > 1]
    varied = [key for key in _keys(found) if len({facts.get(key) for facts, _ in found}) > 1]
    return [
        Series(
            ", ".join(f"{key} {facts[key]}" for key in varied if facts.get(key) is not None),
            facts,
            tuple(sorted(members, key=lambda member: member[0])),
        )
        for facts, members in found
    ]


def show_against_batch(panel: Panel, series: Series, style: Style) -> Shown | Absent:
    """A line an arm through the medians over runs; a cross where its runs ran out of memory."""
    (key,) = panel.metrics
    arms = list(dict.fromkeys(one.arm for _, subject in series.subjects for one in subject.arms))
    medians = {
        arm: [(size, value) for size, subject in series.subjects if (value := subject.median_of(arm, key)) is not None]
        for arm in arms
    }
    values = [value for points in medians.values() for _, value in points]
    if not values:
        return Absent(f"no run measured {key}")
    unit = axis_unit(values, panel.unit)
    sizes = sorted({size for size, _ in series.subjects})
    traces = [_line(arm, points, unit, panel, style) for arm, points in medians.items() if points]
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
    measured = {arm for _, subject in series.subjects for arm in subject.measured_arms}
    remarks = [f"{arm}: not measured" for arm in arms if not medians[arm] and arm in measured]
    remarks += [f"{arm} ran out of memory at batch {', '.join(map(str, where))} (x)" for arm, where in lost.items()]
    return Shown(traces, layout, table, tuple(remarks))


def _line(arm: str, points: Sequence[tuple[int, float]], unit: AxisUnit, panel: Panel, style: Style) -> Trace:
    drawn = style.arms[arm]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [size for size, _ in points],
        "y": [value * unit.factor for _, value in points],
        "name": plotly_text(arm),
        "hovertext": [f"batch {size}: {quantity(value, panel.unit)}" for size, value in points],
        "hoverinfo": "text+name",
        "line": {"color": drawn.colour, "width": 2 + 1.5 * drawn.beneath, "dash": drawn.dash},
        "marker": {"color": drawn.colour, "symbol": drawn.symbol, "size": 8 + 2 * drawn.beneath},
        "meta": {"arm": arm},
    }


def _out_of_memory(arm: str, series: Series) -> list[int]:
    """Batch sizes at which a run of the arm ended so."""
    found = {size for size, subject in series.subjects for run in subject.runs_of(arm) if run.outcome == "oom"}
    return sorted(found)


def _crosses(arm: str, sizes: Sequence[int], height: float, style: Style) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(sizes),
        "y": [height] * len(sizes),
        "name": plotly_text(f"{arm}: out of memory"),
        "showlegend": False,
        "hovertext": [f"batch {size}: out of memory" for size in sizes],
        "hoverinfo": "text+name",
        "marker": {"color": style.arms[arm].colour, "symbol": "x", "size": 12},
        "meta": {"arm": arm},
    }


def _keys(found: Sequence[tuple[dict[str, Scalar], object]]) -> list[str]:
    return list(dict.fromkeys(key for facts, _ in found for key in facts))


def _cell(value: float | None, unit: str) -> str:
    return "-" if value is None else quantity(value, unit)
