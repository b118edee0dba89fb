"""The ledger of a device's storages: their bytes, their category, and when they were allocated and freed."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsweep.memory_categories import MEMORY_CATEGORIES, MemoryCategory
from ampsweep.observe.operators import FakeTensor, FakeTensorMode


@dataclass(slots=True, eq=False)
class Allocation:
    """A storage from its birth to its death. A moment is the number of births and deaths so far."""

    num_bytes: int
    category: MemoryCategory
    born: int
    died: int | None = None

    def alive_at(self, moment: int) -> bool:
        return self.born <= moment and (self.died is None or moment < self.died)


Integers = NDArray[np.int64]
NEVER: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Peak:
    moment: int
    num_bytes: int
    categories: dict[MemoryCategory, int]


@dataclass(frozen=True)
class Lives:
    """Allocations, one array entry each; the first moment is 0."""

    sizes: Integers
    born: Integers
    died: Integers  # `NEVER` if not freed
    categories: Integers  # index into MEMORY_CATEGORIES; -1 for scratch memory of kernels, which is no tensor

    @property
    def end(self) -> int:
        return int(max(self.born.max(initial=0), self.died[self.died < NEVER].max(initial=0))) + 1

    @property
    def held_bytes(self) -> int:
        """Bytes that existed from the beginning."""
        return int(self.sizes[self.born == 0].sum())

    def alive_bytes(self) -> Integers:
        sizes = np.where(self.categories >= 0, self.sizes, 0)
        change = np.zeros(self.end + 1, dtype=np.int64)
        np.add.at(change, self.born, sizes)
        np.subtract.at(change, np.minimum(self.died, self.end), sizes)
        return np.cumsum(change)[: self.end]

    def peak(self, since: int = 0) -> Peak:
        """The peak from `since` on; the first moment with the most bytes."""
        alive = self.alive_bytes()
        moment = since + int(alive[since:].argmax())
        return Peak(moment, int(alive[moment]), self.at(moment))

    def at(self, moment: int) -> dict[MemoryCategory, int]:
        """Bytes of tensors by category at a moment."""
        return self._sums((self.born <= moment) & (moment < self.died))

    def kept(self) -> dict[MemoryCategory, int]:
        """Bytes of tensors by category that were allocated and never freed."""
        return self._sums((self.born > 0) & (self.died == NEVER))

    def _sums(self, mask: NDArray[np.bool_]) -> dict[MemoryCategory, int]:
        sums = (int(self.sizes[mask & (self.categories == index)].sum()) for index in range(len(MEMORY_CATEGORIES)))
        return dict(zip(MEMORY_CATEGORIES, sums, strict=True))


def without_zeros(sums: Mapping[MemoryCategory, int]) -> dict[MemoryCategory, int]:
    return {category: num_bytes for category, num_bytes in sums.items() if num_bytes}


def lives_of(allocations: Iterable[Allocation], scratch: Iterable[Allocation] = ()) -> Lives:
    index = {category: number for number, category in enumerate(MEMORY_CATEGORIES)}
    numbered = [*((allocation, index[allocation.category]) for allocation in allocations), *((s, -1) for s in scratch)]
    rows = [(a.num_bytes, a.born, NEVER if a.died is None else a.died, category) for a, category in numbered]
    return Lives(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)


class Ledger:
    """The lives of the storages of plain tensors on a device. It counts storages, whoever allocated them: views and
    tied weights count once. A storage has one category for its whole life, the last it is given. Sparse tensors are
    left out. On a host, storages of unknown role count by their largest use, and batches by their own bytes."""

    def __init__(
        self,
        device: torch.device,
        *,
        keeps_history: bool = True,
        fake: FakeTensorMode | None = None,
        is_host: bool | None = None,
    ) -> None:
        """`fake`: the mode whose tensors are on a device that exists in sizes only. By default a CPU is a host."""
        self._device, self._keeps_history, self._fake = device, keeps_history, fake
        self._scratch: list[Allocation] = []
        self.allocations: list[Allocation] = []  # in order; born at 0 if they existed from the beginning
        self._known: dict[int, _Known] = {}
        self._delivered: dict[int, tuple[weakref.ref[Tensor], Allocation]] = {}
        self.is_host = device.type == "cpu" if is_host is None else is_host
        self.moment = 0
        self.live_bytes = 0
        self._noted: int | None = None
        self._marked: list[int] = []

    def find(self, tensor: Tensor) -> Allocation | None:
        known = self._find(tensor)
        return None if known is None else known.allocation

    def hold(self, tensor: Tensor, category: MemoryCategory) -> None:
        """Put the storage of a tensor into a category; an unknown storage existed from the beginning."""
        known = self._find(tensor) or self._add(tensor, category, born=0, num_bytes=0)
        if known is not None:
            known.allocation.category = category
            self._count_use(known, known.storage_bytes)

    def hold_unknown(self, tensors: Iterable[Tensor], category: MemoryCategory) -> None:
        """Put unknown storages into `category`; they existed from the beginning."""
        for tensor in tensors:
            known = self._find(tensor) or self._add(tensor, category, born=0, num_bytes=0)
            if known is not None and known.is_foreign:
                self._count_use(known, _extent(tensor) if self.is_host else known.storage_bytes)

    def deliver(self, tensor: Tensor) -> None:
        """Note a tensor of a batch that is delivered now. On a host it counts by its own bytes until it dies, whatever
        else is in its storage. On an accelerator, a storage that no operator has allocated is resident data."""
        known = self._find(tensor)
        if not self.is_host:
            if known is None and isinstance(tensor, FakeTensor):
                self.create(tensor, "other")  # its transfer to a fake device is no operator
            elif known is None:
                self.hold(tensor, "data")
        elif (known is None or known.is_delivered) and (key := id(tensor)) not in self._delivered and tensor.nbytes:
            self.moment += 1
            allocation = self._allocated(tensor.nbytes, "other", self.moment)
            self._know(tensor.untyped_storage(), allocation, is_delivered=True)
            reference = weakref.ref(tensor, lambda _: self._free(self._delivered.pop(key)[1]))
            self._delivered[key] = reference, allocation

    def create(self, tensor: Tensor, category: MemoryCategory) -> bool:
        """Note a tensor that an operator returned; return True if its storage is new."""
        known = self._find(tensor)
        if known is not None:
            if known.storage_bytes == tensor.untyped_storage().nbytes():
                return False
            category = known.allocation.category
            self._forget(id(tensor.untyped_storage()))
        if self._add(tensor, category, born=self.moment + 1) is None:
            return False
        self.moment += 1
        return known is None

    def exchange(self, tensors: Iterable[Tensor]) -> None:
        """Put exchanged tensors into `communication`, unless their storages have a role of their own."""
        for tensor in tensors:
            known = self._find(tensor)
            if known is None or (not known.is_delivered and known.allocation.category in ("temporary", "other")):
                self.hold(tensor, "communication")

    def resize(self, storage: torch.UntypedStorage, before: int) -> None:
        """Note that a storage of `before` bytes was resized, but not by an operator, as gathered parameters are."""
        known, now = self._known.get(id(storage)), storage.nbytes()
        if known is None:
            is_here = storage.device.type == "meta" if self._fake is not None else storage.device == self._device
            if not is_here or (before and now):
                return  # the result of an operator that has not returned yet
            known = self._know(storage, Allocation(0, "communication", born=0, died=0))
            if before:
                known.allocation = self._allocated(before, "communication", born=0)
        elif known.is_delivered or known.storage_bytes == now:
            return
        if known.allocation.died is None:
            self._free(known.allocation)
        if now:
            self.moment += 1
            known.allocation = self._allocated(now, known.allocation.category, self.moment)
        known.storage_bytes, known.is_foreign = now, False

    def scratch(self, num_bytes: int) -> None:
        """Note scratch memory of the running kernel; it counts in no category and no peak."""
        self._scratch.append(Allocation(num_bytes, "temporary", born=self.moment + 1, died=self.moment + 2))
        self.moment += 2

    def note(self) -> None:
        """Note this moment, at which a backward pass begins; `mark` confirms that it is the training's."""
        self._noted = self.moment

    def mark(self) -> None:
        if self._noted is not None:
            self._marked.append(self._noted)
        self._noted = None

    @property
    def marked_moment(self) -> int:
        """The marked moment with the most bytes; without a mark, as in a failed step, the last noted one, else 0."""
        if not self._marked:
            return self._noted or 0
        lives = self.lives()
        return max(self._marked, key=lambda moment: sum(lives.at(moment).values()))

    def lives(self) -> Lives:
        return lives_of(self.allocations, self._scratch)

    def close(self) -> None:
        self._known.clear()
        self._delivered.clear()

    def counts(self, tensor: Tensor) -> bool:
        """Return True if a tensor is on this ledger's device."""
        if tensor.layout is not torch.strided:
            return False
        if isinstance(tensor, FakeTensor):
            # Asking a fake tensor for its device in the usual way calls an operator.
            return tensor.fake_mode is self._fake and tensor.fake_device == self._device
        return (self._fake is None or self.is_host) and tensor.device == self._device

    def _find(self, tensor: Tensor) -> "_Known | None":
        return self._known.get(id(tensor.untyped_storage())) if self.counts(tensor) else None

    def _add(
        self, tensor: Tensor, category: MemoryCategory, born: int, *, num_bytes: int | None = None
    ) -> "_Known | None":
        """Follow the storage of a tensor, of which `num_bytes` are in use so far; None: all."""
        if not self.counts(tensor):
            return None
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return None
        allocation = self._allocated(storage.nbytes() if num_bytes is None else num_bytes, category, born)
        known = self._know(storage, allocation)
        known.is_foreign = num_bytes is not None
        return known

    def _know(self, storage: torch.UntypedStorage, allocation: Allocation, *, is_delivered: bool = False) -> "_Known":
        # A storage keeps the same Python object while it lives, so its id and a weak reference follow it.
        key = id(storage)
        reference = weakref.ref(storage, lambda _: self._forget(key))
        known = _Known(reference, allocation, storage.nbytes(), is_delivered=is_delivered)
        self._known[key] = known
        return known

    def _allocated(self, num_bytes: int, category: MemoryCategory, born: int) -> Allocation:
        allocation = Allocation(num_bytes, category, born)
        if self._keeps_history:
            self.allocations.append(allocation)
        self.live_bytes += num_bytes
        return allocation

    def _count_use(self, known: "_Known", num_bytes: int) -> None:
        added = num_bytes - known.allocation.num_bytes
        if known.is_foreign and added > 0:
            known.allocation.num_bytes += added
            self.live_bytes += added

    def _forget(self, key: int) -> None:
        known = self._known.pop(key)
        if not known.is_delivered and known.allocation.died is None:
            self._free(known.allocation)

    def _free(self, allocation: Allocation) -> None:
        self.moment += 1
        allocation.died = self.moment
        self.live_bytes -= allocation.num_bytes


@dataclass(slots=True, eq=False)
class _Known:
    storage: weakref.ref[torch.UntypedStorage]
    allocation: Allocation
    storage_bytes: int
    is_foreign: bool = False  # it existed before, and counts by its largest use so far
    is_delivered: bool = False  # it holds a batch, whose tensors count instead


def _extent(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
