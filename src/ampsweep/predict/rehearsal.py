"""A training's first steps through the caching allocator: what it would hand out, and take from the device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ampsweep.metrics import MEMORY_CATEGORIES
from ampsweep.predict.caching_allocator import CachingAllocator, DeviceFullError
from ampsweep.predict.timeline import Timeline

_STATE: Final = [*MEMORY_CATEGORIES].index("optimizer_state")


@dataclass(frozen=True)
class Allocated:
    """Peaks in bytes."""

    allocated: int
    """Of what the allocator hands out in a steady step: `torch.cuda.max_memory_allocated`."""
    reserved: int
    """Of what it takes from the device in all: `torch.cuda.max_memory_reserved`."""


def rehearse(step: Timeline, workspaces: tuple[int, ...], limit: int | None = None) -> Allocated | None:
    """Two steps in a row, the first of which makes the optimizer's state; None where they do not fit the limit."""
    allocator = CachingAllocator(limit)
    try:
        for number, num_bytes in enumerate(workspaces):
            allocator.allocate(-1 - number, num_bytes)
        course = events(step)
        _take_step(allocator, step, course, has_state=False)
        allocator.max_allocated = allocator.allocated
        _take_step(allocator, step, course, has_state=True)
    except DeviceFullError:
        return None
    return Allocated(allocator.max_allocated, allocator.max_reserved)


def replay(allocator: CachingAllocator, program: Timeline, moments: list[int]) -> Iterator[None]:
    """Go through a program that began with nothing, and stop at each of these moments."""
    sizes = program.sizes.tolist()
    for moment, number, is_birth in events(program):
        while moments and moment > moments[0]:
            moments = moments[1:]
            yield
        if is_birth:
            allocator.allocate(number, sizes[number])
        else:
            allocator.free(number)
    for _ in moments:
        yield


def events(step: Timeline) -> list[tuple[int, int, bool]]:
    """Births after the beginning and deaths before the end, in order: moment, allocation, whether it is born."""
    births, deaths = np.flatnonzero(step.born), np.flatnonzero(step.died < step.end)
    moments, numbers = np.concatenate([step.born[births], step.died[deaths]]), np.concatenate([births, deaths])
    is_birth = np.arange(len(moments)) < len(births)
    order = np.lexsort((is_birth, numbers, moments))
    return [*zip(moments[order].tolist(), numbers[order].tolist(), is_birth[order].tolist(), strict=True)]


def _take_step(
    allocator: CachingAllocator, step: Timeline, course: list[tuple[int, int, bool]], *, has_state: bool
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
            allocator.free(number)  # what a step leaves behind is gone before the next
