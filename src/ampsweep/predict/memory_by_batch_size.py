"""The memory and the work of a training step at any batch size, and the largest batch that fits, from a few traces."""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.predict.step_memory import StepMemory, Timeline, fits, same_course, step_memory
from ampsweep.predict.target_device import TargetDevice

MAX_BATCH: Final = 2**20  # upper bound of the search for the largest batch
_NEVER_AFTER: Final = 2**16  # an arm that saves nothing at this batch size never does
SMALLEST: Final = 2  # from here on, sizes are affine in the batch size; a single item differs, as in contiguity


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits. It was traced, and so was the next larger: it does not fit. (In a search without
    traces both are interpolated.)"""

    batch_size: int  # 0 if not even one item fits
    is_all_the_data: bool = False  # a larger batch would fit, but the data has none

    @property
    def ended_search(self) -> bool:
        """True if the search ended here; a larger batch may fit, too."""
        return self.batch_size == MAX_BATCH - 1


class NotAffineError(Exception):
    """Raised for two steps that differ in more than the sizes of their allocations."""


class Interpolation:
    """The step at any batch size, interpolated from its traces at two batch sizes. Sizes of tensors are affine in the
    batch size unless they are rounded, or a kernel is chosen by it. NotAffineError: the two traces differ in their
    order or their operators, or sizes do not grow by whole bytes with each item, or one would be negative at batch 0,
    as a size is that grows with the square of the batch."""

    def __init__(self, first: tuple[int, Timeline], second: tuple[int, Timeline]) -> None:
        (self._batch, self._step), (other_batch, other) = first, second
        if not same_course(self._step, other):
            raise NotAffineError
        self._slopes, rest = np.divmod(other.sizes - self._step.sizes, other_batch - self._batch)
        if rest.any() or (self._slopes * self._batch > self._step.sizes).any():
            raise NotAffineError
        if [*map(_course, self._step.works)] != [*map(_course, other.works)]:
            raise NotAffineError
        self._other_batch, self._works = other_batch, [*zip(self._step.works, other.works, strict=True)]

    def at(self, batch: int) -> Timeline:
        return replace(self._step, sizes=self._step.sizes + self._slopes * (batch - self._batch), works=())

    def works(self, batch: int) -> tuple[OperatorWork, ...]:
        """The works of its operators."""
        share = (batch - self._batch) / (self._other_batch - self._batch)
        found = {pair: _between(*pair, share) for pair in {*self._works}}
        return tuple(found[pair] for pair in self._works)

    def agrees(self, batch: int, traced: Timeline) -> bool:
        return same_course(self._step, traced) and bool((self.at(batch).sizes == traced.sizes).all())


class MemoryByBatchSize:
    """The memory of a training step at any batch size; the user's and another are traced at once, more if necessary."""

    def __init__(
        self, trace: Callable[[int], Timeline], has_batch: Callable[[int], bool], target: TargetDevice, batch_size: int
    ) -> None:
        self._trace, self._has_batch = trace, has_batch
        self.target = target  # may be replaced by another on which the steps are the same
        self._traced: dict[int, Timeline] = {}
        self.interpolation: Interpolation | None = None  # between the two; None if every batch size must be traced
        other = SMALLEST if batch_size > SMALLEST else batch_size + 1
        first, second = ((size, self._traced_step(size)) for size in (batch_size, other))
        with suppress(NotAffineError):
            self.interpolation = Interpolation(first, second)

    def works(self, batch_size: int) -> tuple[OperatorWork, ...]:
        """The works of the step's operators."""
        if batch_size in self._traced or batch_size < SMALLEST or self.interpolation is None:
            return self._traced_step(batch_size).works
        return self.interpolation.works(batch_size)

    def at(self, batch_size: int) -> StepMemory:
        return step_memory(self.step(batch_size), self.target, batch_size, is_traced=batch_size in self._traced)

    @property
    def unvouched(self) -> list[str]:
        """The operators in doubt that any traced step called."""
        return sorted({operator.name for step in self._traced.values() for operator in step.unvouched})

    def step(self, batch_size: int) -> Timeline:
        if batch_size in self._traced or batch_size < SMALLEST or self.interpolation is None:
            return self._traced_step(batch_size)
        return self.interpolation.at(batch_size)

    def fits(self, batch_size: int, limit: int) -> bool:
        """Return True if training at this batch size stays within `limit` bytes (see `step_memory.fits`)."""
        return fits(self.step(batch_size), self.target, limit)

    def largest(self, limit: int, *, traces: bool = True) -> LargestBatch:
        """The largest batch that fits into `limit` bytes; it and the next larger one are traced, unless `traces` is
        false and sizes can be interpolated."""
        while True:
            most = self._last(
                lambda size: (self.interpolation is not None or self._has_batch(size)) and self.fits(size, limit)
            )
            if most and not self._has_batch(most):
                return LargestBatch(self._last(self._has_batch), is_all_the_data=True)
            known = self.interpolation
            if known is not None and not traces:
                return LargestBatch(most)
            around = [size for size in (most, most + 1) if size and self._has_batch(size)]
            agreeing = [known is None or known.agrees(size, self._traced_step(size)) for size in around]  # trace both
            if all(agreeing):
                return LargestBatch(most)
            self.interpolation = None

    def _traced_step(self, batch_size: int) -> Timeline:
        if batch_size not in self._traced:
            self._traced[batch_size] = self._trace(batch_size)
        return self._traced[batch_size]

    def _last(self, holds: Callable[[int], bool]) -> int:
        """The largest batch size for which `holds` is true, if it is true for all smaller; 0 if there is none."""
        if not holds(SMALLEST):
            return 1 if holds(1) else 0
        low, high = SMALLEST, 2 * SMALLEST
        while high < MAX_BATCH and holds(high):
            low, high = high, high * 2
        return low + bisect_left(range(low + 1, high), True, key=lambda size: not holds(size))


_AFFINE: Final = ("flops", "read_bytes", "written_bytes", "num_elements", "num_kernels")


def _course(work: OperatorWork) -> tuple[str | None, ...]:
    return work.operator, work.phase, work.dtype


def _between(first: OperatorWork, second: OperatorWork, share: float) -> OperatorWork:
    """The work of an operator at a batch size this share of the way from that of `first` to that of `second`."""
    pairs = {name: (getattr(first, name), getattr(second, name)) for name in _AFFINE}
    changed: dict[str, Any] = {name: round(one + share * (other - one)) for name, (one, other) in pairs.items()}
    if first.sizes is not None and second.sizes is not None:
        changed["sizes"] = tuple(round(a + share * (b - a)) for a, b in zip(first.sizes, second.sizes, strict=True))
    return replace(first, **changed)


def saves_from(baseline: Interpolation, arm: Interpolation) -> int | None:
    """The batch size (2 or more) from which on the arm takes fewer bytes of tensors than the baseline; None if none."""

    def saves(batch_size: int) -> bool:
        return arm.at(batch_size).peak().num_bytes < baseline.at(batch_size).peak().num_bytes

    if not saves(_NEVER_AFTER):
        return None
    low, high = SMALLEST - 1, SMALLEST
    while high < _NEVER_AFTER:
        low, high = (low, high * 2) if saves(high) else (high, high * 2)
    high = max(2 * low, SMALLEST)
    return low + 1 + bisect_left(range(low + 1, high), True, key=saves)
