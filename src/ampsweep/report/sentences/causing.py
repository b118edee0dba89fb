"""Causes that runs recorded, in words."""

from collections.abc import Sequence

from ampsweep.analysis.causes import Cause


def causes(of: Sequence[Cause]) -> str:
    """The causes with their numbers of runs; of a single one just the text."""
    if len(of) == 1:
        return of[0].text
    return "; ".join(f"{one.text} ({one.num_runs})" for one in of)
