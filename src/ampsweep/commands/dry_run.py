"""`dry_run=true`: the runs of a command line, which of them the device supports, and how long they would take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

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
from ampsweep.text import duration, plural

_COLUMNS: Final = (
    *(Column("#"), Column("arm"), Column("model"), Column("data"), Column("parallel", optional=True)),
    *(Column("seed", numeric=True), Column("steps", numeric=True), Column("parameters", numeric=True)),
    *(Column("time", "seconds", numeric=True, optional=True), Column("note", optional=True)),
)


def plan_document(
    configs: Sequence[Config], checked: Sequence[Checked], into: Path | None = None, *, elsewhere: bool = False
) -> Document:
    """List the points with their estimated times, from a short run of each kind; runs `elsewhere` are not timed."""
    hashes = [config_hash(config) for config in configs]
    done = set() if into is None else finished_hashes(into)
    points = list(zip(configs, checked, hashes, strict=True))
    # Equal points are a single run.
    todo = {key: (config, check) for config, check, key in points if check.unsupported is None and key not in done}
    seconds = {} if elsewhere else _seconds(todo)
    rows = []
    for number, (config, check, key) in enumerate(points):
        parallel, arm = config.parallel, planned_arm(config)
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
    unsupported = sorted({(planned_arm(config), check.unsupported) for config, check, _ in points if check.unsupported})
    too_large = dict.fromkeys(check.too_large for check in checked if check.too_large is not None)
    items = (*(Item(why, arm=arm) for arm, why in unsupported), *map(Item, too_large))
    known = [value for value in seconds.values() if value is not None]
    answer = f"{plural(len(configs), 'point')}, {len(todo)} to train; {_took(known, len(seconds))}nothing is written"
    table = Table(key="points", columns=_COLUMNS, rows=tuple(rows))
    return Document(
        title="What would run",
        sections=(Section(blocks=(table, *([Items(items)] if items else []), Prose(answer, "headline"))),),
        arms=arm_styles(map(planned_arm, configs)),
        data={"points": as_rows(table), "num_to_train": len(todo), "seconds": sum(known) if known else None},
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
