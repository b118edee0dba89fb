"""Memory as torch's profiler sees it, including kernels' own, and the resident peak of this process."""

import os
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch.autograd.profiler import profile, record_function

from ampsweep.memory_categories import MemoryCategory
from ampsweep.observe.ledger import Allocation, Lives, lives_of

READING: Final = "ampsweep: a batch is read"
DELIVERED: Final = "ampsweep: bytes of the batch: "
"""Marks in a profile: instead of the allocations between the two, the batch is counted."""
_BACKWARD: Final = "autograd::engine::evaluate_function"  # prefix of the autograd engine's events, one per node


@dataclass(slots=True)
class HostPeak:
    peak_bytes: int | None = None  # above the bytes allocated before; None if it was not measured


@contextmanager
def measure_host_peak() -> Iterator[HostPeak]:
    """Measure the peak of CPU memory allocated inside on this thread, for tensors and by kernels for themselves. The
    profiler costs 20 ms once and some microseconds an operator. Memory that was allocated before and is freed inside is
    not subtracted, and torch says so on stderr. Nothing is measured if a profiler runs already: two would disturb each
    other. Between the marks READING and DELIVERED only the batch counts, until the next one."""
    found = HostPeak()
    if is_measuring():
        yield found
        return
    with quiet_profiler(), profile(profile_memory=True) as profiled:
        yield found
    found.peak_bytes = ProfiledMemory(profiled, torch.device("cpu")).lives().peak().num_bytes


def is_measuring() -> bool:
    """Return True while a profiler runs; a process that was forked now would continue it."""
    return bool(torch._C._autograd._profiler_enabled())  # there is no public function


def mark_in_profile(name: str) -> None:
    """Mark READING, or DELIVERED with the bytes of a batch."""
    if is_measuring():
        with record_function(name):
            pass


def peak_resident_bytes() -> int:
    """The peak of the bytes resident in this process since it began, including shared pages."""
    if platform.system() == "Linux":
        # Not getrusage: its maximum survives exec, so a child would be as large as the parent that launched it.
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            label, _, value = line.partition(":")
            if label == "VmHWM":
                return 1024 * int(value.split()[0])
    if platform.system() == "Windows":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


_Change = tuple[int, Literal["node", "memory", "reading", "delivery"], int, int]
"""A time in nanoseconds, a kind, and two numbers: address and bytes, 0 and a batch's bytes, or 0 and a node's end."""


class ProfiledMemory:
    """The allocations in a profile, from its undocumented event tree, and what `hold` adds. A moment counts changes."""

    def __init__(self, profiled: profile, device: torch.device) -> None:
        self._allocations: list[Allocation] = []
        self._alive: dict[int, Allocation] = {}
        self._in_backward: dict[int, list[Allocation]] = defaultdict(list)  # by address, of autograd's nodes
        self._nodes: list[int] = []  # moments at which a node begins
        self.addresses: set[int] = set()
        assert profiled.kineto_results is not None
        changes = _changes(profiled.kineto_results.experimental_event_tree(), device)
        batch: Allocation | None = None
        is_reading = False
        before_node: list[Allocation] = []
        node_ends = 0
        for moment, (time, kind, address, number) in enumerate(sorted(changes, key=lambda change: change[0]), start=1):
            if kind == "node":
                for allocation in before_node:
                    if allocation.died is None and allocation.category == "temporary":
                        allocation.category = "activations"
                before_node.clear()
                self._nodes.append(moment)
                node_ends = number
            elif kind == "reading":
                is_reading = True
            elif kind == "delivery":
                if batch is not None:
                    batch.died = moment
                batch, is_reading = Allocation(number, "other", moment), False
                self._allocations.append(batch)
            elif number < 0:
                if (freed := self._alive.pop(address, None)) is not None:
                    freed.died = moment
                    if time <= node_ends and freed in self._in_backward[address]:
                        self._in_backward[address].remove(freed)
            else:
                self._alive[address] = allocation = Allocation(number, "temporary", moment)
                if is_reading:
                    continue
                self._allocations.append(allocation)
                self.addresses.add(address)
                if time <= node_ends:
                    self._in_backward[address].append(allocation)
                else:
                    before_node.append(allocation)

    def place(self, gradients: Iterable[int], states: Iterable[int]) -> None:
        """Set the categories of allocations by the addresses of gradients and of optimizer state."""
        for address in gradients:
            for allocation in self._in_backward[address]:
                allocation.category = "gradients"
        for address in states:
            if (found := self._alive.get(address)) is not None:
                found.category = "optimizer_state"

    def hold(self, num_bytes: int, category: MemoryCategory) -> None:
        self._allocations.append(Allocation(num_bytes, category, born=0))

    def lives(self) -> Lives:
        return lives_of(self._allocations)

    def at_end_of_forward(self, lives: Lives) -> dict[MemoryCategory, int]:
        """Bytes by category before the backward pass with the most activations; empty without a backward pass."""
        return max(map(lives.at, self._nodes), key=lambda found: found["activations"], default={})


def in_backward(events: Sequence[Any]) -> Callable[[int], bool]:
    """Return a function of a time in nanoseconds: True if a node of autograd ran then."""
    nodes = sorted((event.start_ns(), event.end_ns()) for event in events if event.name().startswith(_BACKWARD))

    def runs(time: int) -> bool:
        last = bisect_left(nodes, (time + 1, 0)) - 1
        return last >= 0 and time <= nodes[last][1]

    return runs


def _changes(roots: Sequence[Any], device: torch.device) -> Iterator[_Change]:
    waiting = [*roots]
    while waiting:
        event = waiting.pop()
        waiting += event.children
        kind, facts = event.typed
        if kind.name == "Allocation":
            if facts.device.type == device.type and facts.device.index in (None, device.index):
                yield event.start_time_ns, "memory", facts.ptr, facts.alloc_size
        elif event.name.startswith(_BACKWARD):
            yield event.start_time_ns, "node", 0, event.end_time_ns
        elif event.name == READING:
            yield event.start_time_ns, "reading", 0, 0
        elif event.name.startswith(DELIVERED):
            yield event.start_time_ns, "delivery", 0, int(event.name.removeprefix(DELIVERED))


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """Silence the profiler's library, which logs its start and stop on stderr; it reads its log level at first use."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
