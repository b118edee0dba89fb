"""Out-of-memory errors and the facts that they hold."""

import re
from typing import Final

import psutil
import torch

from ampsweep.observe.memory_limit import MemoryLimit, MemoryLimitError, is_out_of_memory
from ampsweep.record.outcome import OutOfMemory, Phase
from ampsweep.text import BYTES_OF, one_line

_OF_HOST: Final = ("DefaultCPUAllocator",)
_WITH_STATISTICS: Final = ("cuda", "xpu")


def out_of_memory(
    error: BaseException,
    device: torch.device,
    limit: MemoryLimit,
    phase: Phase | None = "build",
    step: int | None = None,
) -> OutOfMemory | None:
    """Describe an out-of-memory error; None for any other error.

    Call it while the error is being handled, because its traceback keeps tensors alive.

    Args:
        device: the run's device; the error may be about the host's memory all the same.
        limit: the run's own memory limit.
        phase: what was being done.
        step: number of the current step, from 1; None before the first.
    """
    if not is_out_of_memory(error):
        return None
    return OutOfMemory(
        phase=phase,
        step=step,
        requested_bytes=error.requested_bytes if isinstance(error, MemoryLimitError) else _asked_for(str(error)),
        in_use_bytes=error.in_use_bytes if isinstance(error, MemoryLimitError) else _in_use(error, device),
        limit_bytes=limit.bytes,
        error=one_line(error),
    )


def _asked_for(message: str) -> int | None:
    """Read the requested bytes from the text, torch's only place for them: exact on the CPU, rounded on a GPU."""
    return _size(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", message)


def _in_use(error: BaseException, device: torch.device) -> int | None:
    """Bytes in use: by tensors on a GPU; by the process, if the host had no more memory."""
    is_of_device = isinstance(error, RuntimeError) and not any(sign in str(error) for sign in _OF_HOST)
    if device.type not in _WITH_STATISTICS or not is_of_device:
        return int(psutil.Process().memory_info().rss)
    # The allocator's statistics are those of now: some tensors have gone since, as the error went up.
    then = _size(r"allocated memory ([\d.]+) (bytes|KiB|MiB|GiB) is allocated", str(error))
    return int(torch.get_device_module(device).memory_allocated(device)) if then is None else then


def _size(pattern: str, message: str) -> int | None:
    found = re.search(pattern, message, re.IGNORECASE)
    return None if found is None else round(float(found[1]) * BYTES_OF[found[2]])
