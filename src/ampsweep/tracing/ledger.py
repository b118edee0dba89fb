"""The ledger of a device's storages: their bytes, their category, and when they were made and freed."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ampsweep.memory_categories import MEMORY_CATEGORIES, MemoryCategory


@dataclass(slots=True, eq=False)
class Allocation:
    """The bytes of one storage from its birth to its death. Moments count births and deaths of storages."""

    num_bytes: int
    category: MemoryCategory
    born: int
    died: int | None = None

    def alive_at(self, moment: int) -> bool:
        return self.born <= moment and (self.died is None or moment < self.died)


@dataclass(frozen=True, slots=True)
class Lives:
    """Everything allocated between two moments, in order."""

    allocations: tuple[Allocation, ...]
    """Allocations of storages; those that existed from the beginning were born at moment 0."""
    scratch: tuple[Allocation, ...]
    """Scratch memory of kernels, as far as it is known."""


class Ledger:
    """The lives of all storages under the tensors of one device that are passed to it.

    It counts storages, not tensors: views, tied weights and flattened parameters count once. A storage has one category
    for its whole life, the last it is given: a tensor that turns out to be a gradient was one from its first byte.
    Memory that torch did not allocate (NumPy arrays, memory-mapped files) and sparse tensors are left out.

    Without its history it knows only the storages alive now, and can be kept through any number of steps.
    """

    def __init__(self, device: torch.device, *, keeps_history: bool = True, counted: type[Tensor] = Tensor) -> None:
        """`counted`: the class of tensors that are on the device; a fake device has the same name as the host."""
        self._device, self._keeps_history, self._counted = device, keeps_history, counted
        self._scratch: list[Allocation] = []
        self._allocations: list[Allocation] = []
        self._known: dict[int, tuple[weakref.ref[torch.UntypedStorage], Allocation]] = {}
        self.moment = 0
        """Births and deaths so far."""
        self._live = 0
        self.held_bytes = 0
        """Bytes that existed from the beginning."""
        self.peak_bytes = 0
        """The most bytes that were alive at once so far."""
        self.peak_moment = 0
        self._marked_bytes = -1
        self.marked_moment = 0

    @property
    def live_bytes(self) -> int:
        """Bytes alive now."""
        return self._live

    def find(self, tensor: Tensor) -> Allocation | None:
        """The allocation under a tensor, or None where it is unknown."""
        if not self._counts(tensor):
            return None
        found = self._known.get(id(tensor.untyped_storage()))
        return found[1] if found else None

    def hold(self, tensor: Tensor, category: MemoryCategory) -> None:
        """Put the storage of a tensor into a category; an unknown one counts as there from the beginning."""
        known = self.find(tensor)
        if known is not None:
            known.category = category
            return
        allocation = self._add(tensor, category, born=0)
        if allocation is not None:
            self.held_bytes += allocation.num_bytes
            self.peak_bytes += allocation.num_bytes
            self._marked_bytes += allocation.num_bytes

    def hold_unknown(self, tensors: Iterable[Tensor]) -> None:
        """Put the storages that are unknown into `other`; they were there from the beginning."""
        for tensor in tensors:
            if self.find(tensor) is None:
                self.hold(tensor, "other")

    def create(self, tensor: Tensor, category: MemoryCategory) -> bool:
        """Note a tensor that an operator returned; True if its storage is new."""
        known = self.find(tensor)
        if known is not None:
            if known.num_bytes == tensor.untyped_storage().nbytes():
                return False
            category = known.category
            self._free(id(tensor.untyped_storage()))
        self.moment += 1
        if self._add(tensor, category, born=self.moment) is None:
            return False
        if self._live > self.peak_bytes:
            self.peak_bytes, self.peak_moment = self._live, self.moment
        return known is None

    def scratch(self, num_bytes: int) -> None:
        """Note the scratch memory of a kernel that runs now; it counts in no category and no peak."""
        self._scratch.append(Allocation(num_bytes, "temporary", born=self.moment + 1, died=self.moment + 2))
        self.moment += 2

    def mark(self) -> None:
        """Mark this moment if more bytes are alive than at the moment marked before."""
        if self._live > self._marked_bytes:
            self._marked_bytes, self.marked_moment = self._live, self.moment

    def at_peak(self) -> dict[MemoryCategory, int]:
        """Bytes by category at the moment when the most were alive; they add up to `peak_bytes`."""
        return self._alive_at(self.peak_moment)

    def at_mark(self) -> dict[MemoryCategory, int]:
        """Bytes by category at the marked moment."""
        return self._alive_at(self.marked_moment)

    def kept(self) -> dict[MemoryCategory, int]:
        """Bytes by category that are alive now and were not there in the beginning."""
        return self._sum(allocation for allocation in self._allocations if allocation.born and allocation.died is None)

    def lives(self) -> Lives:
        """All allocations so far."""
        return Lives(tuple(self._allocations), tuple(self._scratch))

    def close(self) -> None:
        """Stop watching storages."""
        self._known.clear()

    def _counts(self, tensor: Tensor) -> bool:
        if not isinstance(tensor, self._counted) or tensor.layout is not torch.strided:
            return False
        # Asking a fake tensor for its device in the usual way calls an operator.
        device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
        return device == self._device

    def _add(self, tensor: Tensor, category: MemoryCategory, born: int) -> Allocation | None:
        if not self._counts(tensor):
            return None
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or not storage.resizable():
            return None
        allocation = Allocation(storage.nbytes(), category, born)
        if self._keeps_history:
            self._allocations.append(allocation)
        # A storage keeps one Python object for as long as it lives, so its id and a weak reference follow it.
        key = id(storage)
        self._known[key] = weakref.ref(storage, partial(self._on_death, key)), allocation
        self._live += allocation.num_bytes
        return allocation

    def _on_death(self, key: int, _: weakref.ref[torch.UntypedStorage]) -> None:
        self._free(key)

    def _free(self, key: int) -> None:
        _, allocation = self._known.pop(key)
        self.moment += 1
        allocation.died = self.moment
        self._live -= allocation.num_bytes

    def _alive_at(self, moment: int) -> dict[MemoryCategory, int]:
        return self._sum(allocation for allocation in self._allocations if allocation.alive_at(moment))

    def _sum(self, allocations: Iterable[Allocation]) -> dict[MemoryCategory, int]:
        sums: dict[MemoryCategory, int] = dict.fromkeys(MEMORY_CATEGORIES, 0)
        for allocation in allocations:
            sums[allocation.category] += allocation.num_bytes
        return sums


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
