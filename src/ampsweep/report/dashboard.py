"""Draws the panels of a comparison: the tables here map each kind of panel to its function."""

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
"""Draws a kind of panel; None if there is nothing to show."""

OF_WORKLOAD: Final[dict[Kind, Draw[WorkloadData]]] = {
    "front": front,
    "curves": curves,
    "by_arm": by_arm,
    "stack": stack,
    "pairs": pairs,
}
OF_SERIES: Final[dict[Kind, Draw[SeriesData]]] = {"against": against, "effects_against": effects_against}
"""Kinds that show workloads of several sizes."""


def curve_keys(panels: Sequence[Panel] = PANELS) -> list[str]:
    """The metrics of the history that `panels` show."""
    return list(dict.fromkeys(key for panel in panels if panel.kind == "curves" for key in panel.metrics))


def workload_panels(
    data: WorkloadData, styles: Mapping[str, ArmStyle], panels: Sequence[Panel]
) -> list[tuple[Panel, Figure]]:
    """The panels of one workload that have something to show, with their figures."""
    drawn = [(panel, OF_WORKLOAD[panel.kind](panel, data, styles)) for panel in panels if panel.kind in OF_WORKLOAD]
    return [(panel, figure) for panel, figure in drawn if figure is not None]


def series_panels(data: SeriesData, styles: Mapping[str, ArmStyle], panels: Sequence[Panel]) -> list[Figure]:
    """The panels over a series of sizes that have something to show."""
    figures = []
    for panel in panels:
        if panel.kind in OF_SERIES:
            titled = replace(panel, title=panel.title.replace("against size", f"against {data.series.name}"))
            figures.append(OF_SERIES[panel.kind](titled, data, styles))
    return [figure for figure in figures if figure is not None]
