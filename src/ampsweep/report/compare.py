"""Compares the runs in directories by their records."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from ampsweep.analysis.comparison import Comparison, FileProblem, MetricNotLogged, compare
from ampsweep.analysis.figure_keys import FigureKeys, chosen_metric, logged_keys
from ampsweep.analysis.resumed_runs import RESUMED_KEYS
from ampsweep.analysis.run_findings import NotPaired
from ampsweep.analysis.sweep_changes import Records, SweepChanges, compare_sweeps
from ampsweep.analysis.time_to_loss import SERIES_KEYS, loss_curves
from ampsweep.config.claims import float32_arm
from ampsweep.config.errors import UserError
from ampsweep.config.schema import ReportConfig
from ampsweep.finding import Finding
from ampsweep.records import FILE_NAME, MULTIRUN_NAME, Found, RunRecord, find_records
from ampsweep.report.histories import Histories, read_histories
from ampsweep.report.panels import curve_keys
from ampsweep.text import plural


class SweepsJoined(Finding):
    severity = "warning"
    template = (
        "the directories share {num_shared:count point} (arm and seed), whose runs count as repeats; to compare two "
        "sweeps: ampsweep report --against OLD NEW"
    )
    num_shared: int


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
    read = _read(directories, settings)
    records, config, keys = read.records, read.config, read.keys
    arms = dict.fromkeys(record.arm for _, record in records)
    if read.are_foreign and config.baseline not in arms:
        config.baseline = float32_arm(arms) or config.baseline
    histories = read_histories(records, (*SERIES_KEYS, *RESUMED_KEYS, *curve_keys()), metric=keys.metric)
    whole = {directory: histories.curves[directory] for directory, _ in records if directory not in histories.partial}
    curves = {directory: loss_curves(record, whole[directory]) for directory, record in records if directory in whole}
    comparison = compare(
        records,
        baseline=config.baseline,
        margin_pct=config.margin_pct,
        max_pairs=config.max_seeds if config.decide else None,
        memory_gib=config.memory_gib,
        keys=keys,
        curves=curves,
        series=whole,
        file_problems=[*read.problems, *histories.omissions],
        notes=[*notes, *read.notes],
        started=started_with,
    )
    joined = _joined(comparison, read.of_directories)
    return Compared(replace(comparison, notes=(*comparison.notes, *joined)), records, histories)


def compare_old_and_new(
    old: Path, new: Path, notes: Sequence[Finding] = (), /, *, tolerance_pct: float, **settings: str | float | None
) -> tuple[SweepChanges, Records, FigureKeys]:
    """Compare the sweeps in two directories; returns their records too, and the keys that they were compared by. A
    setting that is not given is OLD's.

    Raises:
        UserError: as for `compare_directories`; or the sweeps have no training in common, or some runs but not all.
    """
    read = _read((old, new), settings)
    for found in read.of_directories:
        _check_readable([found])
    sides = [of.records for of in read.of_directories]
    ids = [{record.run_id for _, record in side} for side in sides]
    if (num_shared := len(ids[0] & ids[1])) and ids[0] != ids[1]:
        raise UserError(f"{plural(num_shared, 'run')} of {new} are those of {old} too: give two sweeps' directories")
    changes = compare_sweeps(
        *sides,
        margin_pct=read.config.margin_pct,
        tolerance_pct=tolerance_pct,
        keys=read.keys,
        file_problems=read.problems,
        notes=[*notes, *read.notes],
    )
    if not any(arm.has_completed for _, arm in changes.named_arms):
        unpaired = [of for of in changes.not_counted if isinstance(of.finding, NotPaired)]
        first = min(unpaired, key=lambda of: of.side, default=None)  # of NEW, if it has any
        why = "" if first is None else f": {first.arm}: {first.finding.why}"
        raise UserError(f"{new} has no run of a training that completed in {old}{why}")
    return changes, read.records, read.keys


@dataclass(frozen=True)
class _Read:
    """The records of directories, and the settings to compare them by."""

    of_directories: Sequence[Found]
    config: ReportConfig
    keys: FigureKeys
    notes: Sequence[Finding]

    @property
    def records(self) -> Records:
        return [entry for there in self.of_directories for entry in there.records]

    @property
    def are_foreign(self) -> bool:
        return any(record.source != "suite" for _, record in self.records)

    @property
    def problems(self) -> list[FileProblem]:
        unreadable = [error for there in self.of_directories for error in there.unreadable]
        return [FileProblem(path=of.path.as_posix(), name="not readable", reason=of.reason) for of in unreadable]


def _read(directories: Sequence[Path], settings: Mapping[str, str | float | None]) -> _Read:
    found = [_found(directory) for directory in directories]
    _check_readable(found)
    records = [entry for there in found for entry in there.records]
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    recorded = _recorded(records)
    if given.get("metric", recorded.metric) != recorded.metric:
        recorded.goal = None  # that of another metric
    config, every = replace(recorded, **given), [record for _, record in records]
    read = _Read(found, config, chosen_metric(every, config.metric, config.goal), ())
    if not read.keys.is_recorded and (read.are_foreign or config.metric != ReportConfig.metric):
        return replace(read, notes=[MetricNotLogged(metric=config.metric, logged=tuple(logged_keys(every)))])
    return read


def _check_readable(found: Sequence[Found]) -> None:
    unreadable = [error for there in found for error in there.unreadable]
    if not any(there.records for there in found):
        others = f" (nor can {len(unreadable) - 1} more of them)" if len(unreadable) > 1 else ""
        raise UserError(f"there is no record that can be read: {unreadable[0]}{others}")


def _joined(comparison: Comparison, of_directories: Sequence[Found]) -> Iterator[SweepsJoined]:
    place_of = {path.as_posix(): place for place, found in enumerate(of_directories) for path, _ in found.records}
    places: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for compared in comparison.compared:
        for entry in compared.runs:
            places[compared.title, entry.arm, entry.seed].add(place_of[entry.directory])
    if num_shared := sum(len(of_point) > 1 for of_point in places.values()):
        yield SweepsJoined(num_shared=num_shared)


def started_with(directory: Path, of_multirun: bool) -> list[str]:
    """See `Started`; from the files that Hydra leaves beside a run and its multirun."""
    sweep, here = directory.parent, Path.cwd()
    try:
        own = yaml.safe_load((directory / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
        of_all = yaml.safe_load((sweep / MULTIRUN_NAME).read_text(encoding="utf-8"))["hydra"]["overrides"]
        own = of_all["task"] if of_multirun else own
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return []
    place = str(sweep.relative_to(here) if sweep.is_relative_to(here) else sweep)
    into = place if re.fullmatch(r"[\w./-]+", place) else f"'{place}'"
    return [f"into={into}", *(text for text in (*of_all["hydra"], *own) if not text.startswith(_OF_ONE_RUN))]


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
