"""A traced training step as a timeline: when each allocation was made and freed, and how large it was."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampsweep.memory_categories import MEMORY_CATEGORIES, MemoryCategory
from ampsweep.record.parts import UnvouchedOperator
from ampsweep.tracing.ledger import Lives

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TensorPeak:
    """Bytes of tensors at the moment when the most were alive, in all and by category."""

    num_bytes: int
    categories: dict[MemoryCategory, int]


@dataclass(frozen=True)
class Timeline:
    """The allocations of a step, one array entry each.

    Moments count births and deaths; allocations that exist from the beginning were born at 0.
    """

    sizes: Integers
    born: Integers
    died: Integers
    """A moment after the last for allocations that are never freed."""
    categories: Integers
    """Index into MEMORY_CATEGORIES; -1 for scratch memory of kernels, which is no tensor."""
    end_of_forward: int
    optimizer_step: int
    """The moments at which the forward pass had ended and at which the optimizer began."""
    unvouched: tuple[UnvouchedOperator, ...] = ()
    """Operators of the step that may allocate otherwise than here."""

    @property
    def end(self) -> int:
        """The moment after the last."""
        return int(max(self.born.max(), self.died[self.died < _NEVER].max(initial=0))) + 1

    def peak(self) -> TensorPeak:
        """The peak of tensors, without scratch memory."""
        sizes = np.where(self.categories >= 0, self.sizes, 0)
        change = np.zeros(self.end + 1, dtype=np.int64)
        np.add.at(change, self.born, sizes)
        np.subtract.at(change, np.minimum(self.died, self.end), sizes)
        alive = np.cumsum(change)
        moment = int(alive[: self.end].argmax())
        return TensorPeak(int(alive[moment]), self.at(moment))

    def at(self, moment: int) -> dict[MemoryCategory, int]:
        """Bytes of tensors by category at one moment."""
        alive = (self.born <= moment) & (moment < self.died)
        sums = (int(self.sizes[alive & (self.categories == index)].sum()) for index in range(len(MEMORY_CATEGORIES)))
        return dict(zip(MEMORY_CATEGORIES, sums, strict=True))


def same_course(one: Timeline, other: Timeline) -> bool:
    """Tell whether two steps allocate and free the same things in the same order, whatever their sizes."""
    mine: list[Any] = [one.born, one.died, one.categories]
    return all(map(np.array_equal, mine, [other.born, other.died, other.categories]))


_NEVER = np.iinfo(np.int64).max


def timeline(
    lives: Lives, *, end_of_forward: int, optimizer_step: int, unvouched: tuple[UnvouchedOperator, ...] = ()
) -> Timeline:
    """The timeline of a traced step, from the lives of its storages and two of its moments."""
    index = {category: number for number, category in enumerate(MEMORY_CATEGORIES)}
    rows = [
        (life.num_bytes, life.born, _NEVER if life.died is None else life.died, index[life.category])
        for life in lives.allocations
    ]
    rows += [(life.num_bytes, life.born, life.died or _NEVER, -1) for life in lives.scratch]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    sizes, born, died, categories = columns
    return Timeline(sizes, born, _in_order(born, died), categories, end_of_forward, optimizer_step, unvouched)


def _in_order(born: Integers, died: Integers) -> Integers:
    """Put the deaths between two births in order of index: autocast's cache, a hash table, frees in any order."""
    births_before = np.searchsorted(np.sort(born), died)
    ordered = np.empty_like(died)
    ordered[np.lexsort((np.arange(len(died)), births_before))] = np.sort(died)
    return ordered
