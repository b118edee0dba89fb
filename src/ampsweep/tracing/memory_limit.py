"""A memory limit that emulates a smaller device: training runs out of memory where it would on that device."""

from types import TracebackType
from typing import Final, Self

import psutil
import torch

from ampsweep.text import GIB
from ampsweep.tracing.tensor_bytes import TensorBytes

_LARGEST_CONTEXT: Final = GIB
"""The largest part of what is in use beside the allocator that is taken for a context; the rest belongs to other
processes, which may have ended when the run begins."""


class MemoryLimit:
    """Limits the memory of everything that runs inside it; it can be entered repeatedly, and None limits nothing.

    On CUDA everything that the allocator has reserved counts: tensors, their rounding to blocks and segments, and
    workspaces, but not CUDA's own context. On the CPU all tensors count that operators have taken or returned inside
    and that are alive; rounding, the kernels' own scratch memory and memory that torch did not allocate (NumPy arrays,
    mapped files) do not. There the operator that exceeds the limit has done its work when MemoryLimitError is raised.
    """

    def __init__(self, device: torch.device, limit_gib: float | None) -> None:
        """`limit_gib` must be one for which `why_no_limit` returns None."""
        self.bytes = None if limit_gib is None else round(limit_gib * GIB)
        self._device = device
        self._counter = TensorBytes(device, self.bytes) if self.bytes is not None and device.type == "cpu" else None

    @property
    def slows(self) -> bool:
        """Tell whether the limit slows operators down, so that no speed can be measured under it."""
        return self._counter is not None

    @property
    def peak_bytes(self) -> int | None:
        """The most tensor bytes alive at once so far; None where the limit does not count them itself."""
        return None if self._counter is None else self._counter.peak_bytes

    def __enter__(self) -> Self:
        if self._counter is not None:
            self._counter.__enter__()
        elif self.bytes is not None:
            torch.cuda.set_per_process_memory_fraction(self.bytes / _total(self._device), self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._counter is not None:
            self._counter.__exit__(kind, error, trace)
        elif self.bytes is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)


def why_no_limit(device: torch.device, limit_gib: float, *, compiles: bool) -> str | None:
    """One sentence saying why `device` cannot be limited so, or None; `compiles`: the model will be compiled."""
    if device.type not in ("cpu", "cuda"):
        return f"the memory of {device.type} cannot be limited, that of cuda and cpu can"
    if device.type == "cpu" and compiles:
        return "on the CPU tensors are counted operator by operator, which compiled code has not: trainer.compile=false"
    if limit_gib * GIB > (total := _total(device)):
        return f"{device} itself has {total / GIB:.2f} GiB"
    return None


def memory_bytes(device: torch.device, limit_gib: float | None) -> int | None:
    """Bytes that a run on `device` can take: the limit, else the device's memory; None where that is unknown.

    On CUDA the context of this process, some hundred MiB that no allocator counts, comes off the device's memory.
    """
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
