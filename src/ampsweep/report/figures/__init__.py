"""The function that draws each kind of panel; the one place that knows the kinds."""

from collections.abc import Callable
from typing import Final

from ampsweep.report.figures.arm_bars import show_by_arm, show_chain
from ampsweep.report.figures.figure import NoFigure, PanelFigure, Style
from ampsweep.report.figures.front import show_front
from ampsweep.report.figures.memory_changes import show_changes
from ampsweep.report.figures.memory_stack import show_stack
from ampsweep.report.figures.pair_effects import show_pairs
from ampsweep.report.figures.size_lines import SeriesData, show_against_size, show_effects_against_size
from ampsweep.report.figures.step_curves import show_curves
from ampsweep.report.panels import Kind, Panel
from ampsweep.report.workload_data import ArmRuns, WorkloadData

OF_WORKLOAD: Final[dict[Kind, Callable[[Panel, WorkloadData, Style], PanelFigure | NoFigure]]] = {
    "front": show_front,
    "curves": show_curves,
    "by_arm": show_by_arm,
    "chain": show_chain,
    "stack": show_stack,
    "changes": show_changes,
    "pairs": show_pairs,
}
"""Kinds that show one workload."""

OF_SEARCH: Final[dict[Kind, Callable[[Panel, ArmRuns, Style], PanelFigure | NoFigure]]] = {
    "by_arm": show_by_arm,
    "stack": show_stack,
}
"""Kinds that show one search for the largest batches."""

ACROSS_WORKLOADS: Final[dict[Kind, Callable[[Panel, SeriesData, Style], PanelFigure | NoFigure]]] = {
    "against_size": show_against_size,
    "effects_against_size": show_effects_against_size,
}
"""Kinds that show workloads beside each other."""

__all__ = [
    "ACROSS_WORKLOADS",
    "OF_SEARCH",
    "OF_WORKLOAD",
    "NoFigure",
    "PanelFigure",
    "SeriesData",
    "Style",
]
