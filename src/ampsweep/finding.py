"""Findings about runs: each kind is a class with its facts, severity and sentence."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from string import Formatter
from typing import Any, ClassVar, Final, Literal, dataclass_transform

from ampsweep.text import listed, milliseconds, num_bytes, number, percent, plural, seeds_text

Severity = Literal["note", "warning", "fault"]
"""`note`: worth knowing; `warning`: some figures do not count; `fault`: none does, or the training goes wrong."""

_FORMATS: Final[dict[str, Callable[[Any], Any]]] = {
    "bytes": num_bytes,
    "few": lambda names: listed(names, limit=4) or "none",
    "joined": lambda values: ", ".join(map(str, values)),
    "ms": milliseconds,
    "number": number,
    "percent": percent,
    "runs": lambda num_runs_of: ", ".join(f"{name} ({plural(count, 'run')})" for name, count in num_runs_of.items()),
    "seeds": seeds_text,
    "share": lambda share: f"{number(100 * share, 2)}%",
    "size": len,
}


class _Template(Formatter):
    """Fills a template with attributes of a finding: `{peak_bytes:bytes}`, `{num_runs:count run}`."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        return getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("count "):
            return plural(value, format_spec.removeprefix("count "))
        return str(_FORMATS[format_spec](value)) if format_spec in _FORMATS else format(value, format_spec)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Finding:
    """Base class of the kinds, frozen dataclasses without a decorator; fields with `repr=False` are not stored."""

    severity: ClassVar[Severity] = "note"
    template: ClassVar[str]  # with facts in braces (see `_Template`), unless the kind overrides `sentence`

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @property
    def sentence(self) -> str:
        """The finding as a clause, without a capital letter and a full stop."""
        return self.filled(self.template)

    def filled(self, template: str) -> str:
        return _Template().format(template, self)

    @classmethod
    def kind(cls) -> str:
        """The class name in snake case: `NotCompleted` is `not_completed`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def as_data(value: Any) -> Any:
    """Convert dataclasses to dicts for JSON: findings with their kind and sentence, inf and NaN as strings."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind()} if isinstance(value, Finding) else {}
        facts = {of.name: as_data(getattr(value, of.name)) for of in fields(value) if of.repr}
        return {**kind, **facts, **({"sentence": value.sentence} if hasattr(value, "sentence") else {})}
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [as_data(item) for item in value] if isinstance(value, list | tuple) else value
