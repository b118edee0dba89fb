"""Compares the runs in directories by their records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampsweep.analysis.comparison import Comparison, FileProblem, compare
from ampsweep.analysis.resumed_runs import RESUMED_KEYS
from ampsweep.analysis.time_to_loss import SERIES_KEYS, loss_curves
from ampsweep.config.errors import UserError
from ampsweep.config.schema import ReportConfig
from ampsweep.record import FILE_NAME, Found, RunRecord, find_records
from ampsweep.report.dashboard import curve_keys
from ampsweep.report.histories import Histories, read_histories


@dataclass(frozen=True)
class Compared:
    """A comparison with the records and histories it was made from."""

    comparison: Comparison
    records: Sequence[tuple[Path, RunRecord]]
    histories: Histories


def compare_directories(directories: Sequence[Path], **settings: str | float | None) -> Compared:
    """Compare all runs below `directories`; files that cannot be read are left out and named in the comparison.

    Args:
        settings: fields of `ReportConfig`; by default or if None as the runs recorded them.

    Raises:
        UserError: a directory has no records, or no record can be read.
    """
    found = [_found(directory) for directory in directories]
    records = [entry for there in found for entry in there.records]
    unreadable = [error for there in found for error in there.unreadable]
    if not records:
        others = f" (nor can {len(unreadable) - 1} more of them)" if len(unreadable) > 1 else ""
        raise UserError(f"there is no record that can be read: {unreadable[0]}{others}")
    histories = read_histories(records, (*SERIES_KEYS, *RESUMED_KEYS, *curve_keys()))
    whole = {directory: histories.curves[directory] for directory, _ in records if directory not in histories.partial}
    curves = {directory: loss_curves(record, whole[directory]) for directory, record in records if directory in whole}
    problems = [FileProblem(path=of.path.as_posix(), name="not readable", reason=of.reason) for of in unreadable]
    problems += histories.omissions
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    config = vars(replace(_recorded(records), **given))
    comparison = compare(records, **config, curves=curves, series=whole, file_problems=problems)
    return Compared(comparison, records, histories)


def _found(directory: Path) -> Found:
    try:
        if not directory.is_dir():
            raise UserError(f"{directory}: no such directory")
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror}") from error
    found = find_records(directory)
    if not found.records and not found.unreadable:
        raise UserError(f"{directory}: no run records ({FILE_NAME}) in it")
    return found


def _recorded(records: Sequence[tuple[Path, RunRecord]]) -> ReportConfig:
    """Each setting of the report as in the first run that recorded it."""
    config = ReportConfig()
    for _, record in reversed(records):
        found = {key: value for key, value in record.config.get("report", {}).items() if value is not None}
        config = replace(config, **{key: found[key] for key in vars(config) if key in found})
    return config if config.margin_pct > 0 else replace(config, margin_pct=ReportConfig.margin_pct)
