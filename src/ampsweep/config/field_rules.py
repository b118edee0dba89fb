"""The base class of schemas, and rules in the metadata of their fields: allowed words, ranges, and needed keys."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, dataclass_transform

NEEDS: Final = "needs"
"""Metadata: the key without which a field has no effect, and the values that key must have (`NULL` for null). Without
values any but null and false will do."""
NULL: Final = "null"
COMMAND: Final = "ampsweep"  # the key in `NEEDS` that stands for the command itself (`train`, `predict`, ...)
ALLOWED: Final = "allowed"  # Metadata: the only values besides null that a field, or an item of its list, may have
RANGE: Final = "range"  # Metadata: the `Range` of a number; by default `POSITIVE`


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Schema:
    """Base class of a part of the config: makes its subclasses dataclasses whose fields are keyword-only."""

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True)(cls)


class Range(NamedTuple):
    """The numbers that a field may have."""

    holds: Callable[[float], bool]
    sentence: str  # the end of the error about other numbers


POSITIVE: Final = Range(lambda value: value > 0, "must be greater than 0")
NOT_NEGATIVE: Final = Range(lambda value: value >= 0, "must not be negative")
ABOVE_ONE: Final = Range(lambda value: value > 1, "must be greater than 1")
BELOW_ONE: Final = Range(lambda value: 0 < value < 1, "must lie between 0 and 1")
UP_TO_ONE: Final = Range(lambda value: 0 <= value <= 1, "must lie from 0 to 1")
OPEN_SHARE: Final = Range(lambda value: 0 < value < 1, "must be greater than 0 and less than 1")
PAIRS: Final = Range(lambda value: 3 <= value <= 100, "must be from 3, the least with an interval, to 100")
SHARE: Final = Range(lambda value: 0 <= value < 1, "must be at least 0 and less than 1")


def needs(key: str, *values: str) -> dict[str, Any]:
    return {NEEDS: (key, values)}


def one_of(*values: str) -> dict[str, Any]:
    return {ALLOWED: values}


def within(numbers: Range) -> dict[str, Any]:
    return {RANGE: numbers}


def is_met(value: Any, values: Collection[str]) -> bool:
    """Return True if a needed key's value is one of `values` or, without `values`, neither null nor false."""
    return (NULL if value is None else value) in values if values else value not in (None, False)
