"""Runs that a query of the public API selects: its filters, as MongoDB writes them, and its order."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .recorded import Run

_ATTRIBUTES: Final = {
    "display_name": "displayName",
    "displayName": "displayName",
    "group": "groupName",
    "jobType": "jobType",
    "tags": "tags",
    "sweep": "sweep",
}
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$ne": lambda value, wanted: not _equal(value, wanted),
    "$in": lambda value, wanted: any(_equal(value, item) for item in wanted),
}


def matches(run: Run, filters: Mapping[str, Any]) -> bool:
    for key, wanted in filters.items():
        if key == "$and":
            found = all(matches(run, inner) for inner in wanted)
        elif key == "$or":
            found = any(matches(run, inner) for inner in wanted)
        elif isinstance(wanted, dict):
            found = all(_OPERATORS[name](_column(run, key), value) for name, value in wanted.items())
        else:
            found = _equal(_column(run, key), wanted)
        if not found:
            return False
    return True


def ordered(runs: list[Run], order: str | None) -> list[Run]:
    assert order in (None, "+created_at", "-created_at"), "no other order is asked for"
    return sorted(runs, key=lambda run: run.created_at, reverse=(order or "+")[0] == "-")


def _equal(value: Any, wanted: Any) -> bool:
    return wanted in value if isinstance(value, list) and not isinstance(wanted, list) else bool(value == wanted)


def _column(run: Run, key: str) -> Any:
    section, _, name = key.partition(".")
    if section == "config":
        return run.config.get(name.removesuffix(".value"))
    if key in ("name", "state"):
        return getattr(run, key)
    return run.attributes.get(_ATTRIBUTES[key])
