"""One training step as the lives of its allocations, and the same step at another batch size."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampsweep.metrics import MEMORY_CATEGORIES, MemoryCategory
from ampsweep.tracing.ledger import Lives

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Peak:
    """Bytes of tensors when the most were alive, and by category."""

    num_bytes: int
    categories: dict[MemoryCategory, int]


class NotAffineError(Exception):
    """Two steps differ in more than the sizes of what they allocate."""


@dataclass(frozen=True)
class Timeline:
    """Allocations by index; moments count births and deaths, and what is there from the beginning was born at 0."""

    sizes: Integers
    born: Integers
    died: Integers
    """After the last moment for what is never freed."""
    categories: Integers
    """Index into MEMORY_CATEGORIES; -1 for kernels' scratch, which is no tensor."""
    end_of_forward: int
    optimizer_step: int
    """The moments at which the forward pass had ended and at which the optimizer began."""

    @property
    def end(self) -> int:
        """The moment after the last."""
        return int(max(self.born.max(), self.died[self.died < _NEVER].max(initial=0))) + 1

    def peak(self) -> Peak:
        """Of tensors, without scratch."""
        sizes = np.where(self.categories >= 0, self.sizes, 0)
        change = np.zeros(self.end + 1, dtype=np.int64)
        np.add.at(change, self.born, sizes)
        np.subtract.at(change, np.minimum(self.died, self.end), sizes)
        alive = np.cumsum(change)
        moment = int(alive[: self.end].argmax())
        return Peak(int(alive[moment]), self.at(moment))

    def at(self, moment: int) -> dict[MemoryCategory, int]:
        """Bytes of tensors by category at one moment."""
        alive = (self.born <= moment) & (moment < self.died)
        sums = (int(self.sizes[alive & (self.categories == index)].sum()) for index in range(len(MEMORY_CATEGORIES)))
        return dict(zip(MEMORY_CATEGORIES, sums, strict=True))


_NEVER = np.iinfo(np.int64).max


def timeline(lives: Lives, *, end_of_forward: int, optimizer_step: int) -> Timeline:
    """The lives of a traced step."""
    index = {category: number for number, category in enumerate(MEMORY_CATEGORIES)}
    rows = [
        (life.num_bytes, life.born, _NEVER if life.died is None else life.died, index[life.category])
        for life in lives.allocations
    ]
    rows += [(life.num_bytes, life.born, life.died or _NEVER, -1) for life in lives.scratch]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    sizes, born, died, categories = columns
    return Timeline(sizes, born, _in_order(born, died), categories, end_of_forward, optimizer_step)


def _in_order(born: Integers, died: Integers) -> Integers:
    """The deaths between one birth and the next by index: autocast's cache, a hash table, is freed in any order."""
    births_before = np.searchsorted(np.sort(born), died)
    ordered = np.empty_like(died)
    ordered[np.lexsort((np.arange(len(died)), births_before))] = np.sort(died)
    return ordered


class Interpolation:
    """The step at any batch size, from its traces at two.

    Sizes of tensors are affine in the batch size as long as nothing is rounded to it and no kernel is chosen by it. Two
    traces that allocate and free in the same order give every size; that it holds elsewhere a third trace can tell.

    Raises:
        NotAffineError: the order differs, or sizes do not grow by whole bytes with each item.
    """

    def __init__(self, first: tuple[int, Timeline], second: tuple[int, Timeline]) -> None:
        (self._batch, self._step), (other_batch, other) = first, second
        if not _same_course(self._step, other):
            raise NotAffineError
        self._slopes, rest = np.divmod(other.sizes - self._step.sizes, other_batch - self._batch)
        if rest.any():
            raise NotAffineError

    def at(self, batch: int) -> Timeline:
        """The step with this batch size."""
        step = self._step
        sizes = step.sizes + self._slopes * (batch - self._batch)
        return Timeline(sizes, step.born, step.died, step.categories, step.end_of_forward, step.optimizer_step)

    def agrees(self, batch: int, traced: Timeline) -> bool:
        """Whether this is the step that was traced."""
        return _same_course(self._step, traced) and bool((self.at(batch).sizes == traced.sizes).all())


def _same_course(one: Timeline, other: Timeline) -> bool:
    mine: list[Any] = [one.born, one.died, one.categories]
    return all(map(np.array_equal, mine, [other.born, other.died, other.categories]))
