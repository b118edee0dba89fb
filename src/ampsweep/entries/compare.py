"""From the records of one or more directories to their comparison, on disk and on the console."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsweep.analysis.comparison import Comparison, compare
from ampsweep.analysis.loss_curves import SERIES_KEYS, loss_curves
from ampsweep.config.errors import UserError
from ampsweep.record import RecordError, RunRecord, find_records
from ampsweep.report.curves import Histories, read_histories
from ampsweep.report.dashboard import curve_keys


@dataclass(frozen=True)
class Compared:
    """A comparison with what it was made from, as `write_comparison` takes them."""

    comparison: Comparison
    records: Sequence[tuple[Path, RunRecord]]
    histories: Histories


def compare_directories(
    directories: Sequence[Path], *, baseline: str | None = None, margin_pct: float | None = None
) -> Compared:
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
    histories = read_histories((directory for directory, _ in records), (*SERIES_KEYS, *curve_keys()))
    recorded = records[0][1].config["report"]
    comparison = compare(
        records,
        baseline=baseline or recorded["baseline"],
        margin_pct=recorded["margin_pct"] if margin_pct is None else margin_pct,
        curves={
            directory: loss_curves(record, histories.curves[directory])
            for directory, record in records
            if directory in histories.curves
        },
    )
    return Compared(comparison, records, histories)
