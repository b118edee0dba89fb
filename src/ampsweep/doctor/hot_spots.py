"""The places of a training where most time or memory goes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Generic, TypeVar

from ampsweep.observe.calls import Call

AnyCall = TypeVar("AnyCall", bound=Call)
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
_MAX_MODULES: Final = 20


@dataclass(frozen=True)
class HotSpot(Generic[AnyCall]):
    modules: list[str]  # the most expensive first; empty outside the model
    place: str | None
    operator: str | None
    cost: float
    calls: tuple[AnyCall, ...]

    @staticmethod
    def of(costs: Iterable[tuple[AnyCall, float]]) -> "HotSpot[AnyCall]":
        known = [*costs]

        def ranked(attribute: str) -> list[str]:
            costs_of: dict[str | None, float] = defaultdict(float)
            for call, cost in known:
                costs_of[getattr(call, attribute)] += cost
            return [name for name in sorted(costs_of, key=lambda name: -costs_of[name]) if name is not None]

        place, operator = (next(iter(ranked(name)), None) for name in ("place", "operator"))
        calls, cost = tuple(call for call, _ in known), sum(cost for _, cost in known)
        return HotSpot(ranked("module")[:_MAX_MODULES], place, operator, cost, calls)


def hot_spots(costs: Iterable[tuple[AnyCall, float]]) -> list[HotSpot[AnyCall]]:
    """Group calls by module, or by line outside all modules; the most expensive spot first. Modules that differ only in
    numbers (`blocks.0`, `blocks.1`) are a group."""
    found: dict[tuple[str | None, str | None], list[tuple[AnyCall, float]]] = defaultdict(list)
    for call, cost in costs:
        key = (None, call.place) if call.module is None else (unnumbered(call.module), None)
        found[key].append((call, cost))
    return sorted((HotSpot.of(group) for group in found.values()), key=lambda spot: -spot.cost)


def unnumbered(module: str) -> str:
    """The name without its numbers, which blocks of a kind share."""
    return _NUMBER.sub("*", module)


def common_module(names: Sequence[str]) -> str:
    """The innermost module that contains all of these; empty for the model itself."""
    levels = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
