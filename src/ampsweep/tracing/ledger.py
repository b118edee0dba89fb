"""Which bytes are alive on a device, since when, and what they hold."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ampsweep.metrics import MEMORY_CATEGORIES, MemoryCategory


@dataclass(slots=True, eq=False)
class Allocation:
    """The bytes of one storage from one moment to another. Moments count births and deaths of storages."""

    num_bytes: int
    category: MemoryCategory
    born: int
    died: int | None = None

    def alive_at(self, moment: int) -> bool:
        return self.born <= moment and (self.died is None or moment < self.died)


@dataclass(frozen=True, slots=True)
class Lives:
    """All that happened between two moments, in the order it did."""

    allocations: tuple[Allocation, ...]
    """Those of storages; what was there from the beginning was born at moment 0."""
    scratch: tuple[Allocation, ...]
    """Those of kernels for themselves, as far as they are known."""


class Ledger:
    """The life of every storage that tensors on one device show it.

    Storages, not tensors: views, tied weights and flattened parameters count once. A storage is in one category for
    its whole life, the last it is given: what turns out to be a gradient was one from its first byte. Memory that
    torch did not allocate (NumPy arrays, memory-mapped files) and sparse tensors are left out.

    Without its history it knows only what is alive now, and can be kept through any number of steps.
    """

    def __init__(self, device: torch.device, *, keeps_history: bool = True, counted: type[Tensor] = Tensor) -> None:
        """`counted`: only tensors of this class are on the device; a fake device shares its name with the host."""
        self._device, self._keeps_history, self._counted = device, keeps_history, counted
        self._scratch: list[Allocation] = []
        self._allocations: list[Allocation] = []
        self._known: dict[int, tuple[weakref.ref[torch.UntypedStorage], Allocation]] = {}
        self.moment = 0
        """Births and deaths so far."""
        self._live = 0
        self.held_bytes = 0
        """Bytes that were there from the beginning."""
        self.peak_bytes = 0
        """The most bytes that were alive at once so far."""
        self.peak_moment = 0
        self._marked_bytes = -1
        self.marked_moment = 0

    @property
    def live_bytes(self) -> int:
        """Bytes that are alive now."""
        return self._live

    def find(self, tensor: Tensor) -> Allocation | None:
        """The allocation under a tensor, if it is known."""
        if not self._counts(tensor):
            return None
        found = self._known.get(id(tensor.untyped_storage()))
        return found[1] if found else None

    def hold(self, tensor: Tensor, category: MemoryCategory) -> None:
        """Put the storage of a tensor into a category; one not known yet has been there since the beginning."""
        known = self.find(tensor)
        if known is not None:
            known.category = category
            return
        allocation = self._add(tensor, category, born=0)
        if allocation is not None:
            self.held_bytes += allocation.num_bytes
            self.peak_bytes += allocation.num_bytes
            self._marked_bytes += allocation.num_bytes

    def create(self, tensor: Tensor, category: MemoryCategory) -> bool:
        """Note what an operator returned; whether its storage is new."""
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
        """Note what a kernel takes for itself while it runs; it is in no category and in no peak."""
        self._scratch.append(Allocation(num_bytes, "temporary", born=self.moment + 1, died=self.moment + 2))
        self.moment += 2

    def mark(self) -> None:
        """Mark this moment, if more is alive now than at the moment marked before."""
        if self._live > self._marked_bytes:
            self._marked_bytes, self.marked_moment = self._live, self.moment

    def at_peak(self) -> dict[MemoryCategory, int]:
        """Bytes by category when the most were alive; they add up to `peak_bytes`."""
        return self._alive_at(self.peak_moment)

    def at_mark(self) -> dict[MemoryCategory, int]:
        """Bytes by category at the marked moment."""
        return self._alive_at(self.marked_moment)

    def kept(self) -> dict[MemoryCategory, int]:
        """Bytes by category that were not there in the beginning and are there now."""
        return self._sum(allocation for allocation in self._allocations if allocation.born and allocation.died is None)

    def lives(self) -> Lives:
        """The whole story so far."""
        return Lives(tuple(self._allocations), tuple(self._scratch))

    def close(self) -> None:
        """Stop watching storages."""
        self._known.clear()

    def _counts(self, tensor: Tensor) -> bool:
        if not isinstance(tensor, self._counted) or tensor.layout is not torch.strided:
            return False
        # To ask a fake tensor for its device in the usual way is to call an operator.
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
        # A storage keeps one Python object for as long as it lives, so that its id and a weak reference follow it.
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
