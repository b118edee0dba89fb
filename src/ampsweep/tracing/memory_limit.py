"""A smaller device than the one at hand: training on it runs out of memory where it would there."""

from types import TracebackType
from typing import Any, Self

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.text import GIB
from ampsweep.tracing.ledger import Ledger, tensors_in


class MemoryLimitError(torch.OutOfMemoryError):
    """An operator took more tensor memory than the limit leaves."""

    def __init__(self, requested_bytes: int, in_use_bytes: int, limit_bytes: int) -> None:
        """`requested_bytes` is what the operator took on top of `in_use_bytes`."""
        super().__init__(
            f"an operator took {requested_bytes} bytes on top of {in_use_bytes}, and memory is limited to {limit_bytes}"
        )
        self.requested_bytes, self.in_use_bytes = requested_bytes, in_use_bytes


class MemoryLimit:
    """Entered around everything that is to stay within the limit, as often as need be; None limits nothing.

    What counts: on CUDA all that the allocator has reserved (tensors, their rounding to blocks and segments,
    workspaces; not CUDA's own context). On the CPU the bytes of all tensors that operators have taken or returned
    inside and that are still alive; not rounding, what kernels allocate for themselves, or memory that torch did not
    allocate (NumPy arrays, mapped files). There the operator that exceeds it has done its work when it raises.
    """

    def __init__(self, device: torch.device, limit_gib: float | None) -> None:
        """The limit must be one that `why_no_limit` has nothing against."""
        self.bytes = None if limit_gib is None else round(limit_gib * GIB)
        self._device = device
        self._watch = _Watch(device, self.bytes) if self.bytes is not None and device.type == "cpu" else None

    @property
    def slows(self) -> bool:
        """Whether it makes operators slower, so that no speed can be measured under it."""
        return self._watch is not None

    @property
    def peak_bytes(self) -> int | None:
        """The most tensor bytes at once so far, where it counts them itself."""
        return None if self._watch is None else self._watch.peak_bytes

    def __enter__(self) -> Self:
        if self._watch is not None:
            self._watch.__enter__()  # type: ignore[no-untyped-call]
        elif self.bytes is not None:
            torch.cuda.set_per_process_memory_fraction(self.bytes / _total(self._device), self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        elif self.bytes is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)


def why_no_limit(device: torch.device, limit_gib: float, *, compiles: bool) -> str | None:
    """Why memory cannot be limited so on `device`; None where it can be. `compiles`: the model will be compiled."""
    if device.type not in ("cpu", "cuda"):
        return f"the memory of {device.type} cannot be limited, that of cuda and cpu can"
    if device.type == "cpu" and compiles:
        return "on the CPU tensors are counted operator by operator, which compiled code has not: trainer.compile=false"
    if limit_gib * GIB > (total := _total(device)):
        return f"{device} itself has {total / GIB:.2f} GiB"
    return None


def memory_bytes(device: torch.device, limit_gib: float | None) -> int | None:
    """What a run on `device` can take: the limit, without one the device's memory; None where that is not known."""
    if limit_gib is not None:
        return round(limit_gib * GIB)
    return _total(device) if device.type in ("cpu", "cuda") else None


def _total(device: torch.device) -> int:
    if device.type == "cpu":
        return int(psutil.virtual_memory().total)
    return int(torch.cuda.get_device_properties(device).total_memory)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the tensors that operators take and return, below autograd, in backward too."""

    supports_higher_order_operators = True

    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = Ledger(device, keeps_history=False)
        self._limit_bytes = limit_bytes
        self.peak_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(t is not Tensor for t in types):
            return NotImplemented  # a tensor subclass takes over: its operators on plain tensors are seen instead
        ledger = self._ledger
        for tensor in tensors_in((args, kwargs)):
            if ledger.find(tensor) is None:
                ledger.hold(tensor, "other")
        result = func(*args, **(kwargs or {}))
        before = ledger.live_bytes
        for tensor in tensors_in(result):
            ledger.create(tensor, "other")
        taken = ledger.live_bytes - before
        if taken > 0 and before + taken > self._limit_bytes:
            raise MemoryLimitError(taken, before, self._limit_bytes)
        self.peak_bytes = max(self.peak_bytes, before + taken)
        return result
