"""`dry_run=true`: the runs of a command line, which of them the device supports, and how long they would take."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ampsweep.analysis.sequential import seeds_for
from ampsweep.analysis.statistics import MIN_PAIRS
from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config, component_name
from ampsweep.report.data_formats import as_rows
from ampsweep.report.document import Document, Item, Items, Prose, Section
from ampsweep.report.palette import arm_styles
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.run.directories import finished_hashes
from ampsweep.run.request import planned_arm
from ampsweep.run.short_run import short_run
from ampsweep.search.largest_batch import search_seconds
from ampsweep.sweep.preflight import Checked
from ampsweep.sweep.seeded_arms import SeededArm
from ampsweep.text import duration, plural

_SPREADS: Final = (0.1, 0.25, 0.5, 1.0)
_COLUMNS: Final = (
    *(Column("#"), Column("arm"), Column("model"), Column("data"), Column("parallel", optional=True)),
    *(Column("seed", numeric=True), Column("steps", numeric=True), Column("parameters", numeric=True)),
    *(Column("time", "seconds", numeric=True, optional=True), Column("note", optional=True)),
)


def plan_document(
    configs: Sequence[Config], checked: Sequence[Checked], into: Path | None = None, *, elsewhere: bool = False
) -> Document:
    """List the points with their estimated times, from a short run of each kind; runs `elsewhere` are not timed."""
    done = set() if into is None else finished_hashes(into)
    points = [*zip(configs, checked, strict=True)]
    # Equal points are a single run.
    todo = {key: (config, check) for config, check in points if (key := _to_do(config, check, done))}
    seconds = {} if elsewhere else _seconds(todo)
    known = [value for value in seconds.values() if value is not None]
    answer = f"{plural(len(configs), 'point')}, {len(todo)} to train; {_took(known, len(seconds))}nothing is written"
    unsupported = sorted({(planned_arm(config), check.unsupported) for config, check in points if check.unsupported})
    return _document(points, done, seconds, [Item(why, arm=arm) for arm, why in unsupported], answer)


def decision_document(arms: Sequence[SeededArm], said: Sequence[str], into: Path | None) -> Document:
    """List the runs with which a sweep with `report.decide` begins, what is left out, and what it may add."""
    done, report = set() if into is None else finished_hashes(into), arms[0].first.report
    rounds = [(of.points[number].config, of) for number in range(MIN_PAIRS) for of in arms]
    seconds = {key: of.seconds or None for config, of in rounds if (key := _to_do(config, of.check, done))}
    needed = [(spread, seeds_for(spread, report.max_seeds)) for spread in _SPREADS]
    seeds = ", ".join(f"{f'more than {report.max_seeds}' if num is None else num} at {of:g}" for of, num in needed)
    items = [Item(sentence) for sentence in said]
    items.append(
        Item(
            f"seeds that decide parity within {report.margin_pct:g}% with a power of 80%, by the standard deviation of "
            f"the loss gap over seeds in margins: {seeds}"
        )
    )
    known = [value for value in seconds.values() if value is not None]
    answer = (
        f"{plural(len(arms), 'arm')} with {MIN_PAIRS} to {report.max_seeds} seeds, as many as it takes to decide: "
        f"{_took(known, len(seconds))}nothing is written. No further pair begins that would end after "
        f"{report.budget_minutes:g} min"
    )
    return _document([(config, of.check) for config, of in rounds], done, seconds, items, answer)


def _to_do(config: Config, check: Checked, done: Collection[str]) -> str | None:
    """The hash of a run that is to be trained."""
    key = config_hash(config)
    return None if check.unsupported or key in done else key


def _document(
    points: Sequence[tuple[Config, Checked]],
    done: Collection[str],
    seconds: Mapping[str, float | None],
    items: Sequence[Item],
    answer: str,
) -> Document:
    rows = []
    for number, (config, check) in enumerate(points):
        parallel, arm, key = config.parallel, planned_arm(config), config_hash(config)
        ranks = "" if parallel.num_processes is None else f" x{parallel.num_processes}"
        note = "unsupported" if check.unsupported else "finished earlier" if key in done else ""
        time_s = seconds.get(key)
        cells = [Cell(str(number), number), Cell(arm)]
        cells += [Cell(component_name(config.model)), Cell(component_name(config.data))]
        cells += [Cell("" if parallel.strategy == "single" else f"{parallel.strategy}{ranks}")]
        cells += [Cell(str(config.seed), config.seed)]
        cells += [Cell(f"{number_of:,}", number_of) for number_of in (check.num_steps, check.num_parameters)]
        cells += [Cell("" if time_s is None else duration(time_s), time_s)]
        cells += [Cell(note or ("searches its batch" if config.max_batch.search else ""))]
        rows.append(Row(tuple(cells), arm=arm))
    items = [*items, *map(Item, dict.fromkeys(check.too_large for _, check in points if check.too_large is not None))]
    known = [value for value in seconds.values() if value is not None]
    num_to_train = sum(_to_do(config, check, done) is not None for config, check in points)
    table = Table(key="points", columns=_COLUMNS, rows=tuple(rows))
    return Document(
        title="What would run",
        sections=(Section(blocks=(table, *([Items(tuple(items))] if items else []), Prose(answer, "headline"))),),
        arms=arm_styles(planned_arm(config) for config, _ in points),
        data={
            "points": as_rows(table),
            "num_to_train": num_to_train,
            "seconds": sum(known) if seconds and len(known) == len(seconds) else None,
        },
    )


def _seconds(todo: Mapping[str, tuple[Config, Checked]]) -> dict[str, float | None]:
    """Estimate the seconds of each run; runs that differ only in their seed take as long."""
    of_kind: dict[str, float | None] = {}
    kinds = {key: config_hash(replace(config, seed=0)) for key, (config, _) in todo.items()}
    for key, (config, check) in todo.items():
        if kinds[key] not in of_kind:
            of_kind[kinds[key]] = None if check.num_steps is None else _estimate(config, check.num_steps)
    return {key: of_kind[kind] for key, kind in kinds.items()}


def _estimate(config: Config, num_steps: int) -> float | None:
    if config.max_batch.search:
        return search_seconds(config, num_steps)
    return None if (short := short_run(config)) is None else short.seconds(config.trainer, num_steps)


def _took(known: Sequence[float], num_timed: int) -> str:
    if not num_timed:
        return ""
    if not known:
        return "how long is unknown; "
    beside = f" beside {num_timed - len(known)} for which it is unknown" if len(known) < num_timed else ""
    return f"about {duration(sum(known))}{beside}, from a short run of each kind; "
