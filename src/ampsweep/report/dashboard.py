"""The panels of a comparison, drawn: the tables here are the one place that knows the kinds of panels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from ampsweep.report.figure import Figure
from ampsweep.report.figures.bars import by_arm, stack
from ampsweep.report.figures.lines import SeriesData, against, curves, effects_against
from ampsweep.report.figures.pairs import front, pairs
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import PANELS, Kind, Panel
from ampsweep.report.workload_data import WorkloadData

Data = TypeVar("Data")
Draw = Callable[[Panel, Data, Mapping[str, ArmStyle]], Figure | None]
"""Draws a kind of panel; None where there is nothing to show."""

OF_WORKLOAD: Final[dict[Kind, Draw[WorkloadData]]] = {
    "front": front,
    "curves": curves,
    "by_arm": by_arm,
    "stack": stack,
    "pairs": pairs,
}
"""Kinds that show one workload."""
OF_SERIES: Final[dict[Kind, Draw[SeriesData]]] = {"against": against, "effects_against": effects_against}
"""Kinds that show workloads of several sizes."""


def curve_keys(panels: Sequence[Panel] = PANELS) -> list[str]:
    """Metrics of the history that `panels` show."""
    return list(dict.fromkeys(key for panel in panels if panel.kind == "curves" for key in panel.metrics))


def workload_panels(
    data: WorkloadData, styles: Mapping[str, ArmStyle], panels: Sequence[Panel]
) -> list[tuple[Panel, Figure]]:
    """Each of the panels of one workload that has something to show, with its figure."""
    drawn = [(panel, OF_WORKLOAD[panel.kind](panel, data, styles)) for panel in panels if panel.kind in OF_WORKLOAD]
    return [(panel, figure) for panel, figure in drawn if figure is not None]


def series_panels(data: SeriesData, styles: Mapping[str, ArmStyle], panels: Sequence[Panel]) -> list[Figure]:
    """The panels over a series of sizes that have something to show."""
    titled = [
        replace(one, title=one.title.replace("against size", f"against {data.series.name}"))
        for one in panels
        if one.kind in OF_SERIES
    ]
    drawn = [OF_SERIES[panel.kind](panel, data, styles) for panel in titled]
    return [figure for figure in drawn if figure is not None]
