"""Compares the runs in directories by their records."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from ampsweep.analysis.comparison import Comparison, FileProblem, MetricNotLogged, compare
from ampsweep.analysis.figure_keys import chosen_metric, logged_keys
from ampsweep.analysis.resumed_runs import RESUMED_KEYS
from ampsweep.analysis.time_to_loss import SERIES_KEYS, loss_curves
from ampsweep.config.claims import float32_arm
from ampsweep.config.errors import UserError
from ampsweep.config.schema import ReportConfig
from ampsweep.finding import Finding
from ampsweep.records import FILE_NAME, MULTIRUN_NAME, Found, RunRecord, find_records
from ampsweep.report.histories import Histories, read_histories
from ampsweep.report.panels import curve_keys

_OF_ONE_RUN: Final = ("into=", "dry_run=", "hydra.mode=", "hydra.sweep.dir=")  # overrides that more runs do not share


@dataclass(frozen=True)
class Compared:
    """A comparison with the records and histories it was made from."""

    comparison: Comparison
    records: Sequence[tuple[Path, RunRecord]]
    histories: Histories


def compare_directories(
    directories: Sequence[Path], notes: Sequence[Finding] = (), /, **settings: str | float | None
) -> Compared:
    """Compare all runs below `directories`; files that cannot be read are left out and named in the comparison.

    Args:
        notes: findings on runs that are not there.
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
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    recorded = _recorded(records)
    if given.get("metric", recorded.metric) != recorded.metric:
        recorded.goal = None  # that of another metric
    config, every = replace(recorded, **given), [record for _, record in records]
    keys = chosen_metric(every, config.metric, config.goal)
    are_foreign = any(record.source != "suite" for record in every)
    if not keys.is_recorded and (are_foreign or config.metric != ReportConfig.metric):
        notes = [*notes, MetricNotLogged(metric=config.metric, logged=tuple(logged_keys(every)))]
    arms = dict.fromkeys(record.arm for record in every)
    if are_foreign and config.baseline not in arms:
        config.baseline = float32_arm(arms) or config.baseline
    histories = read_histories(records, (*SERIES_KEYS, *RESUMED_KEYS, *curve_keys()), metric=keys.metric)
    whole = {directory: histories.curves[directory] for directory, _ in records if directory not in histories.partial}
    curves = {directory: loss_curves(record, whole[directory]) for directory, record in records if directory in whole}
    problems = [FileProblem(path=of.path.as_posix(), name="not readable", reason=of.reason) for of in unreadable]
    problems += histories.omissions
    comparison = compare(
        records,
        baseline=config.baseline,
        margin_pct=config.margin_pct,
        max_pairs=config.max_seeds if config.decide else None,
        memory_gib=config.memory_gib,
        keys=keys,
        curves=curves,
        series=whole,
        file_problems=problems,
        notes=notes,
        started=started_with,
    )
    return Compared(comparison, records, histories)


def started_with(directory: Path) -> list[str]:
    """See `Started`; from the files that Hydra leaves beside a run and its multirun."""
    sweep, here = directory.parent, Path.cwd()
    try:
        own = yaml.safe_load((directory / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
        of_all = yaml.safe_load((sweep / MULTIRUN_NAME).read_text(encoding="utf-8"))["hydra"]["overrides"]["hydra"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return []
    place = str(sweep.relative_to(here) if sweep.is_relative_to(here) else sweep)
    into = place if re.fullmatch(r"[\w./-]+", place) else f"'{place}'"
    return [f"into={into}", *(text for text in (*of_all, *own) if not text.startswith(_OF_ONE_RUN))]


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
