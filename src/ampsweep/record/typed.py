"""Type checks of JSON values by annotations: a file's content is checked once, when it is read."""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Self, Union, get_args, get_origin, get_type_hints, is_typeddict

from ampsweep.record.parts import Part

_MAX_DEPTH: Final = 32
_MAX_INT: Final = 2**63
_NAMES: Final = {NoneType: "null", dict: "a mapping", list: "a list", str: "a text", bool: "a truth value"}

Check = Callable[[Any], Any]
"""A function that takes a JSON value, returns it as the expected type, and raises WrongValueError if it cannot."""


class WrongValueError(ValueError):
    """A value of the wrong type; the text names its dotted key."""

    def __init__(self, what: str, key: str = "") -> None:
        super().__init__(what, key)
        self._what, self._key = what, key

    def __str__(self) -> str:
        return f"{self._key or 'it'} {self._what}"

    def within(self, key: str | int) -> Self:
        """The same error, seen from the mapping or list that holds the value at `key`."""
        here = f"[{key}]" if isinstance(key, int) else key
        dot = "." if self._key and not self._key.startswith("[") else ""
        return type(self)(self._what, f"{here}{dot}{self._key}")


@cache
def typed(kind: Any) -> Check:
    """Make the check that turns a JSON value into a `kind`.

    - A dataclass is made from a mapping: unknown keys are ignored, absent ones take their default. A `Part` keeps
      unknown keys, and nulls, in `others`.
    - A TypedDict, and `Annotated[dict[str, Any], <TypedDict>]`, is a mapping whose known keys are checked; other keys
      are allowed.
    - Numbers must be finite, and integers must fit into 64 bits, also within `Any`. A float may be written as an
      integer.
    - `object` is not checked.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return lambda value: value
    if kind is Any:
        return _plain
    if origin is Annotated:
        return typed(arguments[1])
    if origin in (Union, UnionType):  # of a type and None
        (other,) = (typed(one) for one in arguments if one is not NoneType)
        return lambda value: None if value is None else other(value)
    if origin is Literal:
        return _one_of(arguments)
    if origin is list:
        return _list(typed(arguments[0]))
    if origin is dict:
        return _mapping({}, typed(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, Part):
        return _part(kind)
    if is_dataclass(kind):
        return _dataclass(kind)
    if is_typeddict(kind):
        return _mapping(_checks(kind), _plain)
    return _scalar(kind)


def _checks(kind: Any) -> dict[str, Check]:
    return {key: typed(hint) for key, hint in get_type_hints(kind, include_extras=True).items()}


def _dataclass(kind: Any) -> Check:
    checks = _checks(kind)
    needed = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]

    def check(value: Any) -> Any:
        _require(value, dict)
        for key in needed:
            if key not in value:
                raise WrongValueError("is missing", key)
        return kind(**{key: _at(key, checks[key], one) for key, one in value.items() if key in checks})

    return check


def _part(kind: Any) -> Check:
    checks = _checks(kind)
    del checks["others"]

    def check(value: Any) -> Any:
        _require(value, dict)
        known, others = {}, {}
        for key, one in value.items():
            if one is None or key not in checks:
                others[key] = _at(key, _plain, one)
            else:
                known[key] = _at(key, checks[key], one)
        return kind(**known, others=others)

    return check


def _mapping(checks: Mapping[str, Check], others: Check) -> Check:
    def check(value: Any) -> Any:
        _require(value, dict)
        return {key: _at(key, checks.get(key, others), one) for key, one in value.items()}

    return check


def _list(item: Check) -> Check:
    def check(value: Any) -> Any:
        _require(value, list)
        return [_at(index, item, one) for index, one in enumerate(value)]

    return check


def _one_of(allowed: tuple[str, ...]) -> Check:
    def check(value: Any) -> Any:
        if value not in allowed:
            raise WrongValueError(f"is {_shown(value)}, none of {', '.join(allowed)}")
        return value

    return check


def _scalar(kind: type) -> Check:
    allowed = (float, int) if kind is float else (kind,)

    def check(value: Any) -> Any:
        if type(value) not in allowed:
            raise WrongValueError(f"is {_shown(value)}, not {_NAMES.get(kind, 'a number')}")
        return _plain(value)

    return check


def _plain(value: Any, depth: int = 0) -> Any:
    """Check a value of any type: all numbers in it must be such that they can be shown and written again."""
    if type(value) is int and not -_MAX_INT <= value < _MAX_INT:
        raise WrongValueError("is an integer of more than 64 bits")
    if type(value) is float and not math.isfinite(value):
        raise WrongValueError(f"is {value}, not a finite number")
    if isinstance(value, dict | list):
        if depth == _MAX_DEPTH:
            raise WrongValueError(f"is nested more than {_MAX_DEPTH} deep")
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            _at(key, _plain, one, depth + 1)
    return value


def _at(key: Any, check: Callable[..., Any], *value: Any) -> Any:
    try:
        return check(*value)
    except WrongValueError as error:
        raise error.within(key) from None


def _require(value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise WrongValueError(f"is {_shown(value)}, not {_NAMES[kind]}")


def _shown(value: Any) -> str:
    """Show a wrong value in a few characters."""
    if isinstance(value, dict | list) or value is None or len(repr(value)) > 40:
        return _NAMES.get(type(value), "a number")
    return repr(value)
