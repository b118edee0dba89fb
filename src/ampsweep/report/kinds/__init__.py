"""How each kind of panel is shown; the one place that knows the kinds."""

from collections.abc import Callable
from typing import Final

from ampsweep.report.kinds.against_batch import Series, batch_series, show_against_batch
from ampsweep.report.kinds.by_arm import show_by_arm, show_chain
from ampsweep.report.kinds.changes import show_changes
from ampsweep.report.kinds.curves import show_curves
from ampsweep.report.kinds.pairs import show_pairs
from ampsweep.report.kinds.shown import Absent, Shown, Style
from ampsweep.report.kinds.stack import show_stack
from ampsweep.report.panels import Kind, Panel
from ampsweep.report.subject import ArmRuns, Subject

OF_WORKLOAD: Final[dict[Kind, Callable[[Panel, Subject, Style], Shown | Absent]]] = {
    "curves": show_curves,
    "by_arm": show_by_arm,
    "chain": show_chain,
    "stack": show_stack,
    "changes": show_changes,
    "pairs": show_pairs,
}
"""Kinds that show one workload."""

OF_SEARCH: Final[dict[Kind, Callable[[Panel, ArmRuns, Style], Shown | Absent]]] = {
    "by_arm": show_by_arm,
    "stack": show_stack,
}
"""Kinds that show one search for the largest batches."""

ACROSS_WORKLOADS: Final[dict[Kind, Callable[[Panel, Series, Style], Shown | Absent]]] = {
    "against_batch": show_against_batch,
}
"""Kinds that show workloads beside each other."""

__all__ = ["ACROSS_WORKLOADS", "OF_SEARCH", "OF_WORKLOAD", "Absent", "Series", "Shown", "Style", "batch_series"]
