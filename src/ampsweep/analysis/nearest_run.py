"""The run that differs least from another, found among many by tables of numbers."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ampsweep.analysis.runs import Run, Scalar

_NOT_SET: Final = "not set"
_UNKNOWN: Final = 0
_NOBODY_ELSES: Final = -1
"""Numbers of values: of what is not known, and of one that no run of the table has."""


def is_known(value: object) -> bool:
    """True for what two runs can differ in: texts and numbers."""
    return isinstance(value, str | int | float)


def or_not_set(conditions: Mapping[str, Scalar], others: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The conditions, with those that only others have as `not set`."""
    return {key: conditions.get(key, _NOT_SET) for key in {**conditions, **others}}


class NearestRun:
    """Finds which of `runs`, at least one, differs least from another run: in facts, settings, conditions, environment.

    Runs that differ in their facts are compared by the number of those only; those alike in them by their settings, and
    so on. Of equally near ones it is the first.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def to(self, run: Run) -> Run:
        """The run nearest to `run`."""
        if len(self._runs) == 1:
            return self._runs[0]
        differing = np.zeros(len(self._runs), dtype=np.int64)
        for of, table in self._tables:
            differing = np.where(differing == 0, table.num_differing(of(run)), differing)
        return self._runs[int(differing.argmin())]

    @cached_property
    def _tables(self) -> list[tuple[Callable[[Run], Mapping[str, Any]], "_Table"]]:
        of_run: list[tuple[Callable[[Run], Mapping[str, Any]], str | None]] = [
            (lambda run: run.facts, None),
            (lambda run: run.settings, None),
            (lambda run: run.conditions, _NOT_SET),
            (lambda run: run.record.environment, None),
        ]
        return [(of, _Table([of(run) for run in self._runs], absent)) for of, absent in of_run]


class _Table:
    """Mappings as rows of numbers: a column a key, where equal values of it have one number.

    Args:
        mappings: the rows.
        absent: the value of a key that a row, or what it is compared with, lacks; None: it is not known.
    """

    def __init__(self, mappings: Sequence[Mapping[str, Any]], absent: str | None) -> None:
        self._absent = absent
        self._numbers: dict[str, dict[Any, int]] = {key: {} for one in mappings for key in one}
        self._rows = np.array([self._row(one, grows=True) for one in mappings], dtype=np.int32)

    def num_differing(self, mapping: Mapping[str, Any]) -> NDArray[np.int64]:
        """The number of keys, by row, whose values are known in both and differ."""
        row = np.array(self._row(mapping, grows=False), dtype=np.int32)
        differs = (self._rows != row) & (self._rows != _UNKNOWN) & (row != _UNKNOWN)
        others = (value for key, value in mapping.items() if key not in self._numbers)
        num_others = 0 if self._absent is None else sum(is_known(one) and one != self._absent for one in others)
        counts: NDArray[np.int64] = differs.sum(axis=1) + num_others
        return counts

    def _row(self, mapping: Mapping[str, Any], *, grows: bool) -> list[int]:
        row = []
        for key, numbers in self._numbers.items():
            value = mapping.get(key, self._absent)
            if not is_known(value):
                row.append(_UNKNOWN)
            else:
                row.append(numbers.setdefault(value, len(numbers) + 1) if grows else numbers.get(value, _NOBODY_ELSES))
        return row
