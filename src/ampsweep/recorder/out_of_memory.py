"""Facts from out-of-memory errors."""

import re

import psutil
import torch

from ampsweep.observe.memory_limit import MemoryLimit, MemoryLimitError, is_out_of_memory
from ampsweep.records.outcome import OutOfMemory, Phase
from ampsweep.text import BYTES_OF, one_line


def out_of_memory(
    error: BaseException,
    device: torch.device,
    limit: MemoryLimit,
    phase: Phase | None = "build",
    step: int | None = None,
) -> OutOfMemory | None:
    """Describe an out-of-memory error; None for any other error.

    Call it while the error is being handled, while its traceback keeps the tensors alive. `device` is the run's,
    although the error may be about the host's memory; `step` counts from 1, None before the first.
    """
    if not is_out_of_memory(error):
        return None
    # torch has the requested bytes in its message only: exact on the CPU, rounded on a GPU.
    requested = _size(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", str(error))
    return OutOfMemory(
        phase=phase,
        step=step,
        requested_bytes=error.requested_bytes if isinstance(error, MemoryLimitError) else requested,
        in_use_bytes=error.in_use_bytes if isinstance(error, MemoryLimitError) else _in_use(error, device),
        limit_bytes=limit.bytes,
        error=one_line(error),
    )


def _in_use(error: BaseException, device: torch.device) -> int | None:
    """Return the bytes in use: by tensors on a GPU; by the process if the host's memory was full."""
    is_of_device = isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error)
    if device.type not in ("cuda", "xpu") or not is_of_device:
        return int(psutil.Process().memory_info().rss)
    # The allocator's statistics are current: tensors have been freed since the error was raised.
    then = _size(r"allocated memory ([\d.]+) (bytes|KiB|MiB|GiB) is allocated", str(error))
    return int(torch.get_device_module(device).memory_allocated(device)) if then is None else then


def _size(pattern: str, message: str) -> int | None:
    found = re.search(pattern, message, re.IGNORECASE)
    return None if found is None else round(float(found[1]) * BYTES_OF[found[2]])
