"""Which runs a query of the public API means: its filters, as MongoDB writes them, and its order."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from .recorded import Run

_COLUMNS: Final[Mapping[str, Callable[[Run], Any]]] = {
    "name": lambda run: run.name,
    "display_name": lambda run: run.attributes.get("displayName"),
    "displayName": lambda run: run.attributes.get("displayName"),
    "group": lambda run: run.attributes.get("groupName"),
    "jobType": lambda run: run.attributes.get("jobType"),
    "job_type": lambda run: run.attributes.get("jobType"),
    "tags": lambda run: run.attributes.get("tags") or [],
    "sweep": lambda run: run.attributes.get("sweep"),
    "state": lambda run: run.state,
    "created_at": lambda run: run.created_at,
    "createdAt": lambda run: run.created_at,
}
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$ne": lambda value, wanted: not _equal(value, wanted),
    "$in": lambda value, wanted: any(_equal(value, one) for one in wanted),
    "$nin": lambda value, wanted: not any(_equal(value, one) for one in wanted),
    "$gt": lambda value, wanted: value is not None and value > wanted,
    "$gte": lambda value, wanted: value is not None and value >= wanted,
    "$lt": lambda value, wanted: value is not None and value < wanted,
    "$lte": lambda value, wanted: value is not None and value <= wanted,
    "$regex": lambda value, wanted: value is not None and re.search(wanted, str(value)) is not None,
    "$exists": lambda value, wanted: (value is not None) == wanted,
}


def matches(run: Run, filters: Mapping[str, Any]) -> bool:
    """Whether the run is one of those that all of ``filters`` mean."""
    for key, wanted in filters.items():
        if key == "$and":
            found = all(matches(run, one) for one in wanted)
        elif key == "$or":
            found = any(matches(run, one) for one in wanted)
        elif key == "$not":
            found = not matches(run, wanted)
        elif isinstance(wanted, dict) and any(name.startswith("$") for name in wanted):
            found = all(_OPERATORS[name](_column(run, key), value) for name, value in wanted.items())
        else:
            found = _equal(_column(run, key), wanted)
        if not found:
            return False
    return True


def ordered(runs: list[Run], order: str | None) -> list[Run]:
    """By the column that ``order`` names after `+` or `-`; runs without it come last."""
    direction, column = (order or "+created_at")[0], (order or "+created_at")[1:]
    with_value = [run for run in runs if _column(run, column) is not None]
    with_value.sort(key=lambda run: _column(run, column), reverse=direction == "-")
    return with_value + [run for run in runs if _column(run, column) is None]


def _equal(value: Any, wanted: Any) -> bool:
    return wanted in value if isinstance(value, list) and not isinstance(wanted, list) else bool(value == wanted)


def _column(run: Run, key: str) -> Any:
    section, _, name = key.partition(".")
    if section == "config":
        return _inner(run.config, name.removesuffix(".value"))
    if section == "summary_metrics":
        return _inner(run.summary, name)
    return _COLUMNS[key](run)


def _inner(values: Mapping[str, Any], name: str) -> Any:
    if name in values:
        return values[name]
    head, _, rest = name.partition(".")
    inner = values.get(head)
    return _inner(inner, rest) if rest and isinstance(inner, dict) else None
