"""The runs behind the figures: each with a link and the settings that tell it apart, and what is common listed once."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ampsweep.analysis.run_entry import RunEntry
from ampsweep.analysis.runs import Run, Scalar
from ampsweep.report.dashboard import Dashboard
from ampsweep.report.extent import JSON_NAME, first_rows
from ampsweep.report.page.filters import facts_attribute, filter_keys
from ampsweep.report.page.markup import Markup, arm_name, name, tag
from ampsweep.report.page.tables import grid
from ampsweep.report.sentences.compiling import compiled, remarks
from ampsweep.report.table import Table
from ampsweep.report.units import quantity
from ampsweep.text import plural

_FIGURES = (
    ("step time", "perf/step_ms", "ms"),
    ("peak memory", "memory/peak_allocated_gib", "GiB"),
    ("val loss", "val/loss", ""),
)
Facts = Mapping[str, Scalar]


def runs_table(dashboard: Dashboard) -> list[Markup]:
    """A run a row, with a note if there are too many for all to have one."""
    keys = filter_keys(dashboard.comparison.workloads)
    facts = [facts_attribute(data.compared.facts, keys) for data in dashboard.compared]
    listed = [(place, *item) for place, data in enumerate(dashboard.compared) for item in data.listed]
    differing = differences([run for _, run, _ in listed])
    every = [(place, run, entry, told) for (place, run, entry), told in zip(listed, differing, strict=True)]
    shown = first_rows(every, lambda item: (item[0], item[1].arm))
    rows = [_row(run, entry, told, dashboard) for _, run, entry, told in shown]
    attributes = [
        {"data_facts": facts[place], "data_arm": run.arm, "data_seed": str(run.seed)} for place, run, _, _ in shown
    ]
    headers = ("arm", "seed", "status", *(header for header, _, _ in _FIGURES), "differs in", "directory", "W&B")
    numeric = (False, True, False, *(True for _ in _FIGURES), False, False, False)
    if any(run.is_compiled for _, run, _, _ in shown):
        headers, numeric = (*headers, "compiled"), (*numeric, False)
        rows = [[*row, _compiled(run)] for row, (_, run, _, _) in zip(rows, shown, strict=True)]
    caption = "All runs" if len(shown) == len(every) else "The first runs of each arm"
    table = grid(headers, numeric, rows, caption=caption, class_="runs", attributes=attributes)
    if len(shown) == len(every):
        return [table]
    return [table, tag("p", f"{len(every) - len(shown):,} more runs are in {JSON_NAME}.", class_="note")]


def _row(run: Run, entry: RunEntry, differing: str, dashboard: Dashboard) -> list[str]:
    return [
        arm_name(run.arm, dashboard.styles[run.arm]),
        str(run.seed),
        entry.status if entry.contaminated is None else f"{entry.status}, contaminated",
        *(_figure(run, key, unit) for _, key, unit in _FIGURES),
        _settings(differing),
        _directory(entry.directory),
        _tracked(entry.tracked_at),
    ]


def _compiled(run: Run) -> str:
    found = run.record.compilation
    return "; ".join([compiled(found), *remarks(found)]) if run.is_compiled and run.measured else "-"


def _figure(run: Run, key: str, unit: str) -> str:
    value = run.figure(key)
    return "-" if value is None else f"{value:.4f}" if key == "val/loss" else quantity(value, unit)


def _settings(differing: str) -> Markup:
    return tag("code", differing) if differing else Markup("-")


def _directory(path: str) -> Markup:
    """A link that works if the page lies beside the runs; otherwise the plain path."""
    return (
        name(path) if path.startswith("/") else tag("a", name(path), href=f"./{quote(path, errors='surrogateescape')}/")
    )


def _tracked(place: str | None) -> Markup:
    if place is None:
        return Markup("-")
    return tag("a", name(place), href=place) if place.startswith(("https://", "http://")) else name(place)


def differences(runs: Sequence[Run]) -> list[str]:
    """For each run the settings in which the runs differ, arm and seed apart: `data.batch_size=16 optimizer.lr=0.1`."""
    settings = [run.settings for run in runs]
    varied = _varied(settings)
    return [" ".join(f"{key}={_text(one[key])}" for key in varied if key in one) for one in settings]


def arms_table(runs: Sequence[Run]) -> Table:
    """An arm a row: the parts of its precision in which the arms differ, and what its traced step computed in."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.arm, run)
    precision = {arm: flat(run.record.config.get("precision", {})) for arm, run in first.items()}
    varied = [key for key in _varied(list(precision.values())) if key != "mode"]
    rows = tuple((arm, *(_text(precision[arm].get(key)) for key in varied), _arithmetic(runs, arm)) for arm in first)
    headers = ("arm", *varied, "matrix arithmetic of the traced step")
    return Table(headers, (False,) * len(headers), rows)


def environment_tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    """Facts about machine and software: those of all runs, and those that differ, with the runs of each value."""
    environments = [(run, flat(run.record.environment)) for run in runs if run.record.environment]
    varied = set(_varied([facts for _, facts in environments]))
    keys = dict.fromkeys(key for _, facts in environments for key in facts)
    common = tuple((key, _text(environments[0][1].get(key))) for key in keys if key not in varied)
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run, facts in environments:
        for key in varied:
            owners[key, _text(facts.get(key))].append(run.arm)
    differing = tuple(
        (key, value, f"{plural(len(arms), 'run')}: {', '.join(dict.fromkeys(arms))}")
        for (key, value), arms in sorted(owners.items())
    )
    return (
        Table(("fact", "value"), (False, False), common),
        Table(("fact", "value", "runs"), (False, False, False), differing),
    )


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """The leaves of nested mappings by dotted key; lists as JSON."""
    leaves: dict[str, Scalar] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            is_scalar = value is None or isinstance(value, str | int | float | bool)
            leaves[f"{prefix}{key}"] = value if is_scalar else json.dumps(value, default=str)
    return leaves


def _varied(settings: Sequence[Facts]) -> list[str]:
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({_text(one.get(key)) for one in settings}) > 1]


def _arithmetic(runs: Iterable[Run], arm: str) -> str:
    """Shares of the traced step's matrix FLOPs by dtype, of the arm's first run that was traced."""
    for run in runs:
        flops = run.record.proof.flops
        if run.arm == arm and flops:
            total = sum(flops.values())
            return ", ".join(f"{dtype} {100 * count / total:.1f}%" for dtype, count in flops.items() if count)
    return "-"


def _text(value: Scalar) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)
