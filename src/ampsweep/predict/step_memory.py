"""The memory of one training step on a target: when each allocation lives, and CUDA's allocator's count of them."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ampsweep.memory_categories import MEMORY_CATEGORIES, MemoryCategory
from ampsweep.observe.ledger import Integers, Ledger, Lives
from ampsweep.predict.cuda_allocator import CudaAllocatorModel, DeviceFullError
from ampsweep.predict.target_device import TargetDevice
from ampsweep.record.parts import UnvouchedOperator

_STATE: Final = [*MEMORY_CATEGORIES].index("optimizer_state")


@dataclass(frozen=True)
class Timeline(Lives):
    """The lives of a step's allocations, and two of its moments."""

    end_of_forward: int
    optimizer_step: int
    """The moments at which the forward pass had ended and at which the optimizer began."""
    unvouched: tuple[UnvouchedOperator, ...] = ()
    """Operators of the step that may allocate otherwise than here."""


def same_course(one: Timeline, other: Timeline) -> bool:
    """Return True if two steps allocate and free the same things in the same order, whatever their sizes."""
    mine: list[Any] = [one.born, one.died, one.categories]
    return all(map(np.array_equal, mine, [other.born, other.died, other.categories]))


def timeline(ledger: Ledger, *, optimizer_step: int, unvouched: tuple[UnvouchedOperator, ...] = ()) -> Timeline:
    """The timeline of a traced step."""
    lives = ledger.lives()
    died = _in_order(lives.born, lives.died)
    return Timeline(lives.sizes, lives.born, died, lives.categories, ledger.marked_moment, optimizer_step, unvouched)


def _in_order(born: Integers, died: Integers) -> Integers:
    """Put the deaths between two births in order of index: autocast's cache, a hash table, frees in any order."""
    births_before = np.searchsorted(np.sort(born), died)
    ordered = np.empty_like(died)
    ordered[np.lexsort((np.arange(len(died)), births_before))] = np.sort(died)
    return ordered


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step takes at one batch size. The field names are the keys of `ampsweep predict format=json`."""

    batch_size: int
    peak_bytes: int
    """Tensors at the peak; `peak` has them by category, `end_of_forward` those alive before backward."""
    peak: dict[MemoryCategory, int]
    end_of_forward: dict[MemoryCategory, int]
    allocated_bytes: int | None
    """Peak as the CUDA allocator counts it: rounded, and with workspaces. None on the CPU, as `reserved_bytes`."""
    reserved_bytes: int | None
    is_traced: bool
    """True where the step was traced at this batch size, False where it was interpolated."""
    unvouched: tuple[UnvouchedOperator, ...] = ()
    """Operators that may take more or less memory than these figures have."""

    @property
    def total_bytes(self) -> int:
        """The peak that the device itself would report."""
        return self.peak_bytes if self.allocated_bytes is None else self.allocated_bytes


def step_memory(step: Timeline, target: TargetDevice, batch_size: int, *, is_traced: bool = True) -> StepMemory:
    """The memory of a step of this batch size on the target."""
    peak = step.peak()
    allocator = None if target.kind == "cpu" else after_two_steps(step, target.workspaces)
    return StepMemory(
        batch_size,
        peak.num_bytes,
        peak.categories,
        step.at(step.end_of_forward),
        None if allocator is None else allocator.max_allocated,
        None if allocator is None else allocator.max_reserved,
        is_traced=is_traced,
        unvouched=step.unvouched,
    )


def fits(step: Timeline, target: TargetDevice, limit: int) -> bool:
    """Return True if two such steps stay within `limit` bytes: of tensors on the CPU, on CUDA of the allocator's."""
    if target.kind == "cpu":
        return step.peak().num_bytes <= limit
    return after_two_steps(step, target.workspaces, limit) is not None


def after_two_steps(step: Timeline, workspaces: tuple[int, ...], limit: int | None = None) -> CudaAllocatorModel | None:
    """The allocator after a training's first two steps, of which the first makes the optimizer's state.

    `max_allocated` is that of the second, a steady step. None where they take more than `limit` bytes from the device.
    """
    allocator = CudaAllocatorModel(limit)
    try:
        for number, num_bytes in enumerate(workspaces):
            allocator.allocate(-1 - number, num_bytes)
        course = events(step)
        _take_step(allocator, step, course, has_state=False)
        allocator.max_allocated = allocator.allocated
        _take_step(allocator, step, course, has_state=True)
    except DeviceFullError:
        return None
    return allocator


def events(step: Timeline) -> list[tuple[int, int, bool]]:
    """Births after the beginning and deaths before the end, in order: (moment, allocation, whether it is a birth)."""
    births, deaths = np.flatnonzero(step.born), np.flatnonzero(step.died < step.end)
    moments, numbers = np.concatenate([step.born[births], step.died[deaths]]), np.concatenate([births, deaths])
    is_birth = np.arange(len(moments)) < len(births)
    order = np.lexsort((is_birth, numbers, moments))
    return [*zip(moments[order].tolist(), numbers[order].tolist(), is_birth[order].tolist(), strict=True)]


def _take_step(
    allocator: CudaAllocatorModel, step: Timeline, course: list[tuple[int, int, bool]], *, has_state: bool
) -> None:
    sizes, categories, end = step.sizes.tolist(), step.categories.tolist(), step.end
    there = [number for number, moment in enumerate(step.born.tolist()) if moment == 0]
    state = [number for number in there if categories[number] == _STATE]
    for number in there:
        if not allocator.holds(number) and (has_state or categories[number] != _STATE):
            allocator.allocate(number, sizes[number])
    for moment, number, is_birth in course:
        if not has_state and moment > step.optimizer_step:
            has_state = True
            for late in state:
                allocator.allocate(late, sizes[late])
        if is_birth:
            allocator.allocate(number, sizes[number])
        else:
            allocator.free(number)
    for number, moment in enumerate(step.died.tolist()):
        if moment >= end and step.born[number]:
            allocator.free(number)  # a step's leftovers are gone before the next
