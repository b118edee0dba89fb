"""The memory of one arm's training step at any batch size, from a few traces."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ampsweep.metrics import MemoryCategory
from ampsweep.predict.rehearsal import rehearse
from ampsweep.predict.target import Target
from ampsweep.predict.timeline import Interpolation, NotAffineError, Timeline

MAX_BATCH: Final = 2**20
"""No answer is looked for beyond it."""
_NEVER_AFTER: Final = 2**16
"""An arm that takes more than the baseline here never takes less."""
SMALLEST: Final = 2
"""Batch size from which on sizes are even in it: one item alone is a special case, of contiguity for one."""


@dataclass(frozen=True)
class Memory:
    """Bytes at one batch size."""

    batch_size: int
    peak_bytes: int
    """Of tensors, and by category at that moment and before backward."""
    peak: dict[MemoryCategory, int]
    end_of_forward: dict[MemoryCategory, int]
    allocated_bytes: int | None
    """As the CUDA allocator counts: rounded, and with workspaces. None on the CPU."""
    reserved_bytes: int | None
    is_traced: bool
    """Traced at this batch size; else interpolated."""

    @property
    def total_bytes(self) -> int:
        """What the device's own figure would be."""
        return self.peak_bytes if self.allocated_bytes is None else self.allocated_bytes


def memory_of(step: Timeline, target: Target, batch_size: int, *, is_traced: bool = True) -> Memory:
    """What a step of this batch size takes on the target."""
    peak = step.peak()
    allocated = None if target.kind == "cpu" else rehearse(step, target.workspaces)
    return Memory(
        batch_size,
        peak.num_bytes,
        peak.categories,
        step.at(step.end_of_forward),
        None if allocated is None else allocated.allocated,
        None if allocated is None else allocated.reserved,
        is_traced=is_traced,
    )


def fits(step: Timeline, target: Target, limit: int) -> bool:
    """Whether two steps stay below so many bytes: of tensors on the CPU, taken from the device by the allocator on
    CUDA, where it gives back what is free before it gives up."""
    if target.kind == "cpu":
        return step.peak().num_bytes <= limit
    return rehearse(step, target.workspaces, limit) is not None


@dataclass(frozen=True)
class LargestBatch:
    """An answer, whose neighbours were traced: this fits, one more does not."""

    batch_size: int
    """0: not even one item fits."""
    is_all_the_data: bool = False
    """More would fit, but the data has no larger batch."""

    @property
    def is_last_looked_at(self) -> bool:
        """Whether more may fit, too, as nobody has looked."""
        return self.batch_size == MAX_BATCH - 1


class ArmMemory:
    """What traces at two batch sizes say about all.

    Args:
        trace: a step at a batch size.
        has_batch: whether the data can give one of this size.
        batch_size: one that the user trains with.
    """

    def __init__(
        self, trace: Callable[[int], Timeline], has_batch: Callable[[int], bool], target: Target, batch_size: int
    ) -> None:
        self._trace, self._has_batch, self._target = trace, has_batch, target
        self._traced: dict[int, Timeline] = {}
        self._at: dict[int, Memory] = {}
        self._interpolation: Interpolation | None = None
        other = SMALLEST if batch_size > SMALLEST else batch_size + 1
        one, two = ((size, self._traced_step(size)) for size in (batch_size, other))
        with suppress(NotAffineError):  # then every batch size asked for is traced
            self._interpolation = Interpolation(one, two)

    @property
    def interpolation(self) -> Interpolation | None:
        """The step at any batch size; None where every batch size has to be traced."""
        return self._interpolation

    def at(self, batch_size: int) -> Memory:
        """The memory of a step at this batch size."""
        return memory_of(self.step(batch_size), self._target, batch_size, is_traced=batch_size in self._traced)

    def step(self, batch_size: int) -> Timeline:
        """Every allocation of a step at this batch size."""
        if batch_size in self._traced or batch_size < SMALLEST or self._interpolation is None:
            return self._traced_step(batch_size)
        return self._interpolation.at(batch_size)

    def fits(self, batch_size: int, limit: int) -> bool:
        """As `fits` says of one step."""
        return fits(self.step(batch_size), self._target, limit)

    def largest(self, limit: int) -> LargestBatch:
        """The largest batch that fits into so many bytes, traced and so is the next."""
        while True:
            most = self._last(lambda size: self._can_be_told(size) and self.fits(size, limit))
            if most and not self._has_batch(most):
                return LargestBatch(self._last(self._has_batch), is_all_the_data=True)
            known = self._interpolation
            around = [size for size in (most, most + 1) if size and self._has_batch(size)]
            confirmed = [self._confirm(size) for size in around]  # both, whatever the first says
            if all(confirmed) or known is None:
                return LargestBatch(most)

    def _can_be_told(self, batch_size: int) -> bool:
        return self._interpolation is not None or self._has_batch(batch_size)

    def _confirm(self, batch_size: int) -> bool:
        """Trace this batch size; where that is not what was interpolated, nothing is interpolated any more."""
        step = self._traced_step(batch_size)
        if self._interpolation is not None and not self._interpolation.agrees(batch_size, step):
            self._interpolation = None
            return False
        return True

    def _traced_step(self, batch_size: int) -> Timeline:
        if batch_size not in self._traced:
            self._traced[batch_size] = self._trace(batch_size)
        return self._traced[batch_size]

    def _last(self, holds: Callable[[int], bool]) -> int:
        """The largest batch size for which something holds that holds for all smaller ones; 0 for none."""
        if not holds(SMALLEST):
            return 1 if holds(1) else 0
        low, high = SMALLEST, 2 * SMALLEST
        while high < MAX_BATCH and holds(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low


def saves_from(baseline: Interpolation, arm: Interpolation) -> int | None:
    """The batch size, 2 or more, from which on the arm's tensors take less than the baseline's; None: they never do."""

    def saves(batch_size: int) -> bool:
        return arm.at(batch_size).peak().num_bytes < baseline.at(batch_size).peak().num_bytes

    if not saves(_NEVER_AFTER):
        return None
    low, high = SMALLEST - 1, SMALLEST
    while high < _NEVER_AFTER:
        low, high = (low, high * 2) if saves(high) else (high, high * 2)
    high = max(2 * low, SMALLEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if saves(middle) else (middle, high)
    return high
