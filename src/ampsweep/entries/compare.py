"""From the records of one or more directories to their comparison, on disk and on the console."""

from collections.abc import Sequence
from pathlib import Path

from ampsweep.analysis.comparison import Comparison, compare
from ampsweep.config.errors import UserError
from ampsweep.record import RecordError, RunRecord, find_records


def compare_directories(
    directories: Sequence[Path], *, baseline: str | None = None, margin_pct: float | None = None
) -> Comparison:
    """Compare all runs below `directories`; baseline and margin are those the runs recorded, unless given.

    Raises:
        UserError: a directory has no records, or what it has is none.
    """
    records: list[tuple[Path, RunRecord]] = []
    for directory in directories:
        if not directory.is_dir():
            raise UserError(f"{directory}: no such directory")
        try:
            found = find_records(directory)
        except RecordError as error:
            raise UserError(str(error)) from error
        if not found:
            raise UserError(f"{directory}: no run records (run.json) in it")
        records += found
    recorded = records[0][1].config["report"]
    return compare(
        records,
        baseline=baseline or recorded["baseline"],
        margin_pct=recorded["margin_pct"] if margin_pct is None else margin_pct,
    )
