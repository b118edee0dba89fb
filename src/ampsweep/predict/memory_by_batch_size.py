"""The memory of a training step at any batch size, and the largest batch that fits, from a few traces."""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ampsweep.predict.step_memory import StepMemory, Timeline, fits, same_course, step_memory
from ampsweep.predict.target_device import TargetDevice

MAX_BATCH: Final = 2**20
"""The search for the largest batch ends here."""
_NEVER_AFTER: Final = 2**16
"""An arm that takes more than the baseline at this batch size never takes less."""
SMALLEST: Final = 2
"""Batch size from which on sizes are affine in it. A single item is a special case, for one in its contiguity."""


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits. It was traced, and so was one item more, which does not fit."""

    batch_size: int
    """Items; 0 where not even one fits."""
    is_all_the_data: bool = False
    """A larger batch would fit, but the data has none."""

    @property
    def ended_search(self) -> bool:
        """Tell whether the search ended here, so that a larger batch may fit too."""
        return self.batch_size == MAX_BATCH - 1


class NotAffineError(Exception):
    """Raised for two steps that differ in more than the sizes of their allocations."""


class Interpolation:
    """The step at any batch size, interpolated from its traces at two.

    Sizes of tensors are affine in the batch size as long as none is rounded to a multiple and no kernel is chosen by
    it. Two traces that allocate and free in the same order give every size; a third can confirm one of them.

    Raises:
        NotAffineError: the order differs, or sizes do not grow by whole bytes with each item.
    """

    def __init__(self, first: tuple[int, Timeline], second: tuple[int, Timeline]) -> None:
        (self._batch, self._step), (other_batch, other) = first, second
        if not same_course(self._step, other):
            raise NotAffineError
        self._slopes, rest = np.divmod(other.sizes - self._step.sizes, other_batch - self._batch)
        if rest.any():
            raise NotAffineError

    def at(self, batch: int) -> Timeline:
        """The step at this batch size."""
        return replace(self._step, sizes=self._step.sizes + self._slopes * (batch - self._batch))

    def agrees(self, batch: int, traced: Timeline) -> bool:
        """Tell whether the step at this batch size is the one that was traced."""
        return same_course(self._step, traced) and bool((self.at(batch).sizes == traced.sizes).all())


class MemoryByBatchSize:
    """The memory of a training step at any batch size; two are traced at once, others where that is needed.

    `batch_size` is the one the user trains with.
    """

    def __init__(
        self, trace: Callable[[int], Timeline], has_batch: Callable[[int], bool], target: TargetDevice, batch_size: int
    ) -> None:
        self._trace, self._has_batch, self._target = trace, has_batch, target
        self._traced: dict[int, Timeline] = {}
        self.interpolation: Interpolation | None = None
        """Between the traced steps; None where every batch size has to be traced."""
        other = SMALLEST if batch_size > SMALLEST else batch_size + 1
        one, two = ((size, self._traced_step(size)) for size in (batch_size, other))
        with suppress(NotAffineError):  # every batch size asked for is then traced
            self.interpolation = Interpolation(one, two)

    def at(self, batch_size: int) -> StepMemory:
        """The memory of a step at this batch size."""
        return step_memory(self.step(batch_size), self._target, batch_size, is_traced=batch_size in self._traced)

    @property
    def unvouched(self) -> list[str]:
        """The names of the operators in doubt that were called in any traced step."""
        return sorted({one.name for step in self._traced.values() for one in step.unvouched})

    def step(self, batch_size: int) -> Timeline:
        """The timeline of a step at this batch size."""
        if batch_size in self._traced or batch_size < SMALLEST or self.interpolation is None:
            return self._traced_step(batch_size)
        return self.interpolation.at(batch_size)

    def fits(self, batch_size: int, limit: int) -> bool:
        """Tell whether training at this batch size stays within `limit` bytes (see `step_memory.fits`)."""
        return fits(self.step(batch_size), self._target, limit)

    def largest(self, limit: int) -> LargestBatch:
        """The largest batch that fits into `limit` bytes; it and the next larger one are traced."""
        while True:
            most = self._last(
                lambda size: (self.interpolation is not None or self._has_batch(size)) and self.fits(size, limit)
            )
            if most and not self._has_batch(most):
                return LargestBatch(self._last(self._has_batch), is_all_the_data=True)
            known = self.interpolation
            around = [size for size in (most, most + 1) if size and self._has_batch(size)]
            confirmed = [self._confirm(size) for size in around]  # both, whatever the first says
            if all(confirmed) or known is None:
                return LargestBatch(most)

    def _confirm(self, batch_size: int) -> bool:
        """Trace this batch size; where the trace contradicts the interpolation, drop the interpolation."""
        step = self._traced_step(batch_size)
        if self.interpolation is not None and not self.interpolation.agrees(batch_size, step):
            self.interpolation = None
            return False
        return True

    def _traced_step(self, batch_size: int) -> Timeline:
        if batch_size not in self._traced:
            self._traced[batch_size] = self._trace(batch_size)
        return self._traced[batch_size]

    def _last(self, holds: Callable[[int], bool]) -> int:
        """The largest batch size for which `holds` is true, if it is true for all smaller ones; 0 for none."""
        if not holds(SMALLEST):
            return 1 if holds(1) else 0
        low, high = SMALLEST, 2 * SMALLEST
        while high < MAX_BATCH and holds(high):
            low, high = high, high * 2
        return low + bisect_left(range(low + 1, high), True, key=lambda size: not holds(size))


def saves_from(baseline: Interpolation, arm: Interpolation) -> int | None:
    """The batch size, 2 or more, from which on the arm's tensors take less than the baseline's; None if none."""

    def saves(batch_size: int) -> bool:
        return arm.at(batch_size).peak().num_bytes < baseline.at(batch_size).peak().num_bytes

    if not saves(_NEVER_AFTER):
        return None
    low, high = SMALLEST - 1, SMALLEST
    while high < _NEVER_AFTER:
        low, high = (low, high * 2) if saves(high) else (high, high * 2)
    high = max(2 * low, SMALLEST)
    return low + 1 + bisect_left(range(low + 1, high), True, key=saves)
