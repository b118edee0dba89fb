"""A memory limit that emulates a smaller device: a training runs out of memory as it would there."""

import errno
from collections.abc import Sequence
from typing import Any, Final, Self

import psutil
import torch
from torch import Tensor

from ampsweep.observe.feeding import StorageCounter
from ampsweep.observe.ledger import Ledger
from ampsweep.text import GIB

_LARGEST_CONTEXT: Final = GIB
"""At most this much memory in use outside the allocator is taken for a context; the rest is of other processes."""
_SIGNS: Final = ("DefaultCPUAllocator", "MPS backend out of memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""Out-of-memory errors of the CPU's and mps's allocators, and of CUDA and its libraries past torch's allocator."""
_NO_ENGINE: Final = "unable to find an engine to execute this computation"
"""Text of cuDNN's convolutions if all algorithms failed, maybe without room for a workspace (ATen's Conv_v8.cpp)."""


class MemoryLimitError(torch.OutOfMemoryError):
    """Raised by an operator that allocated more tensor memory than the limit leaves."""

    def __init__(self, requested_bytes: int, in_use_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"an operator took {requested_bytes} bytes on top of {in_use_bytes}, and memory is limited to {limit_bytes}"
        )
        self.requested_bytes, self.in_use_bytes = requested_bytes, in_use_bytes


class TensorBytes(StorageCounter):
    """Counts the storages of operators' inputs and results on a device; raises MemoryLimitError over its limit."""

    def __init__(self, device: torch.device, limit_bytes: int | None = None) -> None:
        super().__init__(Ledger(device, keeps_history=False))
        self._limit_bytes = limit_bytes
        self.peak_bytes = 0
        self.made_bytes = 0  # bytes of all storages that operators allocated, freed or not

    def deliver(self, batch: Any) -> None:
        before = self.ledger.live_bytes
        super().deliver(batch)
        self._check_limit(before)

    def _note(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], result: Any, made: Any
    ) -> None:
        before = self.ledger.live_bytes
        for tensor in made:
            if self.ledger.create(tensor, "other"):
                self.made_bytes += tensor.untyped_storage().nbytes()
        self._check_limit(before)

    def _check_limit(self, before: int) -> None:
        taken = self.ledger.live_bytes - before
        if self._limit_bytes is not None and taken > 0 and before + taken > self._limit_bytes:
            raise MemoryLimitError(taken, before, self._limit_bytes)
        self.peak_bytes = max(self.peak_bytes, before + taken)


class MemoryLimit:
    """Limits the memory of everything that runs inside it, repeatedly; None limits nothing. On CUDA, all memory that
    the allocator has reserved counts, without CUDA's context; on the CPU, living tensors that operators have got or
    returned inside, without scratch memory: the operator that raises MemoryLimitError has done its work."""

    def __init__(self, device: torch.device, limit_gib: float | None) -> None:
        """`why_no_limit` must return None for `limit_gib`."""
        self.bytes = None if limit_gib is None else round(limit_gib * GIB)
        self._device = device
        self._counter = TensorBytes(device, self.bytes) if self.bytes is not None and device.type == "cpu" else None

    @property
    def slows(self) -> bool:
        """True if the limit slows operators down, so that no speed can be measured under it."""
        return self._counter is not None

    @property
    def peak_bytes(self) -> int | None:
        """Peak of the tensor bytes so far; None if the limit does not count them itself."""
        return None if self._counter is None else self._counter.peak_bytes

    def __enter__(self) -> Self:
        if self._counter is not None:
            self._counter.__enter__()
        elif self.bytes is not None:
            torch.cuda.set_per_process_memory_fraction(self.bytes / _total(self._device), self._device)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._counter is not None:
            self._counter.__exit__(*error)
        elif self.bytes is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)


def why_no_limit(device: torch.device, limit_gib: float, *, compiles: bool) -> str | None:
    """A sentence with the reason why the memory cannot be limited so, or None; `compiles`: the model is compiled."""
    if device.type not in ("cpu", "cuda"):
        return f"the memory of {device.type} cannot be limited, that of cuda and cpu can"
    if device.type == "cpu" and compiles:
        return "on the CPU tensors are counted operator by operator, which compiled code has not: trainer.compile=false"
    if limit_gib * GIB > (total := _total(device)):
        return f"{device} itself has {total / GIB:.2f} GiB"
    return None


def memory_bytes(device: torch.device, limit_gib: float | None) -> int | None:
    """Bytes that a run can use: the limit, else the device's, less this process's context on CUDA; None if unknown."""
    left = _without_context(device) if device.type == "cuda" else None
    if limit_gib is None:
        return _total(device) if device.type == "cpu" else left
    limit = round(limit_gib * GIB)
    return limit if left is None else min(limit, left)


def _without_context(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    used_otherwise = total - free - torch.cuda.memory_reserved(device)
    return int(total - min(used_otherwise, _LARGEST_CONTEXT))


def _total(device: torch.device) -> int:
    if device.type == "cpu":
        return int(psutil.virtual_memory().total)
    return int(torch.cuda.get_device_properties(device).total_memory)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the device or the host had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(sign in text for sign in _SIGNS) or (_NO_ENGINE in text and _allocator_has_refused())


def _allocator_has_refused() -> bool:
    """Return True if torch's CUDA allocator has refused a request in this process (other refusals end the run)."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    devices = range(torch.cuda.device_count())
    return any(torch.cuda.memory_stats_as_nested_dict(device).get("num_ooms", 0) for device in devices)
