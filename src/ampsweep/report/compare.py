"""The comparison of the runs in one or more directories, from their records."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ampsweep.analysis.comparison import Comparison, FileProblem, compare
from ampsweep.analysis.resumed import RESUMED_KEYS
from ampsweep.analysis.time_to_loss import SERIES_KEYS, loss_curves
from ampsweep.config.errors import UserError
from ampsweep.config.schema import ReportConfig
from ampsweep.record import FILE_NAME, Found, RunRecord, find_records
from ampsweep.report.dashboard import curve_keys
from ampsweep.report.histories import Histories, read_histories


@dataclass(frozen=True)
class Compared:
    """A comparison with the data it was made from, as `write_comparison` takes them."""

    comparison: Comparison
    records: Sequence[tuple[Path, RunRecord]]
    histories: Histories


def compare_directories(directories: Sequence[Path], **settings: str | float | None) -> Compared:
    """Compare all runs below `directories`.

    Files that cannot be read are named in the comparison and left out.

    Args:
        directories: of runs or of multiruns.
        settings: fields of `ReportConfig`; what is None or not given is as the runs recorded it.

    Raises:
        UserError: a directory has no records, or no record can be read.
    """
    found = [_found(directory) for directory in directories]
    records = [entry for one in found for entry in one.records]
    unreadable = [error for one in found for error in one.unreadable]
    if not records:
        others = f" (nor can {len(unreadable) - 1} more of them)" if len(unreadable) > 1 else ""
        raise UserError(f"there is no record that can be read: {unreadable[0]}{others}")
    histories = read_histories(records, (*SERIES_KEYS, *RESUMED_KEYS, *curve_keys()))
    whole = {directory: histories.curves[directory] for directory, _ in records if directory not in histories.partial}
    curves = {directory: loss_curves(record, whole[directory]) for directory, record in records if directory in whole}
    problems = [FileProblem(path=one.path.as_posix(), name="not readable", reason=one.reason) for one in unreadable]
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    config = replace(_recorded(records), **given)
    comparison = compare(
        records,
        baseline=config.baseline,
        margin_pct=config.margin_pct,
        memory_gib=config.memory_gib,
        curves=curves,
        series=whole,
        file_problems=[*problems, *histories.omissions],
    )
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
    """Each setting of the report as the first run that recorded one has it."""
    config = ReportConfig()
    for _, record in reversed(records):
        found = {key: value for key, value in record.config.get("report", {}).items() if value is not None}
        config = replace(config, **{one.name: found[one.name] for one in fields(config) if one.name in found})
    return config if config.margin_pct > 0 else replace(config, margin_pct=ReportConfig.margin_pct)
