"""The memory of a training step on a target: the lives of its allocations, and the CUDA allocator's bytes."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ampsweep.memory_categories import MEMORY_CATEGORIES, MemoryCategory
from ampsweep.observe.ledger import Integers, Ledger, Lives
from ampsweep.observe.operator_work import OperatorWork
from ampsweep.predict.cuda_allocator import CudaAllocatorModel, DeviceFullError
from ampsweep.predict.target_device import TargetDevice
from ampsweep.records.sections import UnvouchedOperator

_STATE: Final = [*MEMORY_CATEGORIES].index("optimizer_state")


@dataclass(frozen=True)
class Timeline(Lives):
    """The lives of a step's allocations, the moments of the end of forward and of the optimizer's step, and the works
    of its operators, unless it was interpolated."""

    end_of_forward: int
    optimizer_step: int
    unvouched: tuple[UnvouchedOperator, ...] = ()  # operators of the step that may allocate differently
    works: tuple[OperatorWork, ...] = ()
    first_products: tuple[int, int] = (0, 0)
    """The moments at which the forward and the backward pass first multiply matrices, and take their workspaces."""


def same_course(first: Timeline, second: Timeline) -> bool:
    """Return True if two steps allocate and free in the same order, whatever the sizes."""
    names = ("born", "died", "categories")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


def timeline(ledger: Ledger, *, optimizer_step: int, unvouched: tuple[UnvouchedOperator, ...] = ()) -> Timeline:
    lives = ledger.lives()
    died = _in_order(lives.born, lives.died)
    return Timeline(lives.sizes, lives.born, died, lives.categories, ledger.marked_moment, optimizer_step, unvouched)


def _in_order(born: Integers, died: Integers) -> Integers:
    """Sort the deaths between two births by index: autocast's cache, a hash table, frees in any order."""
    births_before = np.searchsorted(np.sort(born), died)
    ordered = np.empty_like(died)
    ordered[np.lexsort((np.arange(len(died)), births_before))] = np.sort(died)
    return ordered


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a step at a batch size. The field names are the keys of `ampsweep predict format=json`."""

    batch_size: int
    peak_bytes: int  # of tensors
    peak: dict[MemoryCategory, int]
    end_of_forward: dict[MemoryCategory, int]
    allocated_bytes: int | None  # the CUDA allocator's peak, rounded and with workspaces; None on the CPU
    reserved_bytes: int | None  # None on the CPU
    is_traced: bool  # False if it was interpolated
    unvouched: tuple[UnvouchedOperator, ...] = ()  # operators that may take more or less memory

    @property
    def total_bytes(self) -> int:
        """The peak that the device itself would report."""
        return self.peak_bytes if self.allocated_bytes is None else self.allocated_bytes


def step_memory(step: Timeline, target: TargetDevice, batch_size: int, *, is_traced: bool = True) -> StepMemory:
    peak, end_of_forward, allocated, reserved = step.peak(), step.at(step.end_of_forward), None, None
    if target.kind == "cuda" and (allocator := after_two_steps(step, target.workspaces)) is not None:
        allocated, reserved = allocator.max_allocated, allocator.max_reserved
    figures = (peak.num_bytes, peak.categories, end_of_forward, allocated, reserved)
    return StepMemory(batch_size, *figures, is_traced=is_traced, unvouched=step.unvouched)


def fits(step: Timeline, target: TargetDevice, limit: int) -> bool:
    """Return True if two such steps stay within `limit` bytes, on the CPU of tensors, on CUDA of the allocator."""
    if target.kind == "cpu":
        return step.peak().num_bytes <= limit
    return after_two_steps(step, target.workspaces, limit) is not None


def after_two_steps(step: Timeline, workspaces: tuple[int, ...], limit: int | None = None) -> CudaAllocatorModel | None:
    """The allocator after a training's first two steps; the first creates the optimizer's state. `max_allocated` is
    that of the second, a steady step. None if they take more than `limit` bytes from the device."""
    allocator = CudaAllocatorModel(limit)
    try:
        course = events(step)
        _take_step(allocator, step, course, workspaces)
        allocator.max_allocated = allocator.allocated
        _take_step(allocator, step, course)
    except DeviceFullError:
        return None
    return allocator


def events(step: Timeline) -> list[tuple[int, int, bool]]:
    """Births after the beginning and deaths before the end, in order: (moment, allocation, True for a birth)."""
    births, deaths = np.flatnonzero(step.born), np.flatnonzero(step.died < step.end)
    moments, numbers = np.concatenate([step.born[births], step.died[deaths]]), np.concatenate([births, deaths])
    is_birth = np.arange(len(moments)) < len(births)
    order = np.lexsort((is_birth, numbers, moments))
    return [*zip(moments[order].tolist(), numbers[order].tolist(), is_birth[order].tolist(), strict=True)]


def _take_step(
    allocator: CudaAllocatorModel,
    step: Timeline,
    course: list[tuple[int, int, bool]],
    workspaces: tuple[int, ...] | None = None,
) -> None:
    """Take a step, with `workspaces` the first one: it creates them, in the middle of its blocks, and the state."""
    has_state, waiting = workspaces is None, _by_moment(step, workspaces or ())
    sizes, categories, end = step.sizes.tolist(), step.categories.tolist(), step.end
    resident = [number for number, moment in enumerate(step.born.tolist()) if moment == 0]
    state = [number for number in resident if categories[number] == _STATE]
    for number in resident:
        if number not in allocator.in_use and (has_state or categories[number] != _STATE):
            allocator.allocate(number, sizes[number])
    for moment, number, is_birth in course:
        while waiting and moment > waiting[-1][0]:
            _, workspace, num_bytes = waiting.pop()
            allocator.allocate(workspace, num_bytes)
        if not has_state and moment > step.optimizer_step:
            has_state = True
            for late in state:
                allocator.allocate(late, sizes[late])
        if is_birth:
            allocator.allocate(number, sizes[number])
        else:
            allocator.free(number)
    for _, workspace, num_bytes in waiting[::-1]:
        allocator.allocate(workspace, num_bytes)
    for number, moment in enumerate(step.died.tolist()):
        if moment >= end and step.born[number]:
            allocator.free(number)  # a step's leftovers are freed before the next


def _by_moment(step: Timeline, workspaces: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """The moment, number and bytes of each workspace, the latest first: the second is that of backward."""
    moments = (step.first_products[number == 1] for number in range(len(workspaces)))
    return sorted(zip(moments, range(-1, -1 - len(workspaces), -1), workspaces, strict=True), reverse=True)
