"""The layers of a model as rows of a figure: of very many, neighbours share a row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

MAX_ROWS: Final = 48
_LEAST_PART: Final = 3
"""Layers that share rows have at least this part of `MAX_ROWS`, if there are enough of them."""
_MAX_LABEL: Final = 34


@dataclass(frozen=True)
class LayerRow:
    """Neighbouring layers that are drawn together; mostly one."""

    name: str
    layers: tuple[int, ...]
    """Their places among all layers."""

    @property
    def label(self) -> str:
        """The name, short enough for an axis: the middle is left out."""
        if len(self.name) <= _MAX_LABEL:
            return self.name
        head = _MAX_LABEL // 3
        return f"{self.name[:head]}…{self.name[head + 1 - _MAX_LABEL :]}"


def layer_rows(names: Sequence[str], max_rows: int = MAX_ROWS) -> list[LayerRow]:
    """The rows for layers, in their order.

    Of too many, those whose dotted names begin alike share a row, by as short a beginning as leaves enough rows; where
    these are still too many, neighbours among them share a row, too.

    >>> [row.name for row in layer_rows(["a.0.x", "a.0.y", "a.1.x", "a.1.y", "b"], max_rows=4)]
    ['a (4)', 'b']
    >>> [row.name for row in layer_rows([f"a.{number}.x" for number in range(6)], max_rows=3)]
    ['a.0 to 1 (2)', 'a.2 to 3 (2)', 'a.4 to 5 (2)']
    """
    if len(names) <= max_rows:
        return [LayerRow(name or "(model)", (place,)) for place, name in enumerate(names)]
    groups = _groups(names, max_rows)
    num_each = math.ceil(len(groups) / max_rows)
    return [_row(groups[begin : begin + num_each]) for begin in range(0, len(groups), num_each)]


_Group = tuple[str, tuple[int, ...]]
"""The common beginning of some layers' names, and their places."""


def _groups(names: Sequence[str], max_rows: int) -> list[_Group]:
    parts = [name.split(".") for name in names]
    groups: list[_Group] = []
    for depth in range(1, max(map(len, parts)) + 1):
        beginnings = [".".join(one[:depth]) for one in parts]
        found = groupby(range(len(names)), key=beginnings.__getitem__)
        groups = [(beginning, tuple(places)) for beginning, places in found]
        if len(groups) > 1 and len(groups) >= max_rows / _LEAST_PART:
            break
    return groups


def _row(groups: Sequence[_Group]) -> LayerRow:
    layers = tuple(place for _, places in groups for place in places)
    first, last = groups[0][0] or "(model)", groups[-1][0] or "(model)"
    if len(groups) > 1:
        parent = f"{first.rpartition('.')[0]}."
        first = f"{first} to {last.removeprefix(parent) if '.' in first else last}"
    return LayerRow(first if len(layers) == 1 else f"{first} ({len(layers)})", layers)
