"""The function that draws each kind of panel; the one place that knows the kinds."""

from collections.abc import Callable
from typing import Final

from ampsweep.report.figure import Figure, NoFigure
from ampsweep.report.figures.bars import by_arm, chain, changes, stack
from ampsweep.report.figures.drawing import Style
from ampsweep.report.figures.lines import SeriesData, against, curves, effects_against
from ampsweep.report.figures.pairs import front, pairs
from ampsweep.report.panels import Kind, Panel
from ampsweep.report.workload_data import ArmRuns, WorkloadData

OF_WORKLOAD: Final[dict[Kind, Callable[[Panel, WorkloadData, Style], Figure | NoFigure]]] = {
    "front": front,
    "curves": curves,
    "by_arm": by_arm,
    "chain": chain,
    "stack": stack,
    "changes": changes,
    "pairs": pairs,
}
"""Kinds that show one workload."""

OF_SEARCH: Final[dict[Kind, Callable[[Panel, ArmRuns, Style], Figure | NoFigure]]] = {"by_arm": by_arm, "stack": stack}
"""Kinds that show one search for the largest batches."""

ACROSS_WORKLOADS: Final[dict[Kind, Callable[[Panel, SeriesData, Style], Figure | NoFigure]]] = {
    "against": against,
    "effects_against": effects_against,
}
"""Kinds that show workloads beside each other."""

__all__ = ["ACROSS_WORKLOADS", "OF_SEARCH", "OF_WORKLOAD", "SeriesData", "Style"]
