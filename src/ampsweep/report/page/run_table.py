"""The table of the runs behind the figures, each with its distinguishing settings and a link."""

from urllib.parse import quote

from ampsweep.analysis.run_entry import RunEntry
from ampsweep.analysis.runs import Run
from ampsweep.report.dashboard import Dashboard
from ampsweep.report.extent import JSON_NAME, first_rows
from ampsweep.report.page.filters import facts_attribute, filter_keys
from ampsweep.report.page.markup import Markup, arm_name, name, tag
from ampsweep.report.page.tables import grid
from ampsweep.report.sentences.compiling import compiled, remarks
from ampsweep.report.settings import differences
from ampsweep.report.units import quantity

_FIGURES = (
    ("step time", "perf/step_ms", "ms"),
    ("peak memory", "memory/peak_allocated_gib", "GiB"),
    ("val loss", "val/loss", ""),
)


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
