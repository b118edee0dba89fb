"""Which errors mean that there was not enough memory, and what they tell of it."""

import errno
import re
from typing import Final

import psutil
import torch

from ampsweep.record.outcome import OutOfMemory, Phase
from ampsweep.tracing.tensor_bytes import MemoryLimitError

_SIGNS: Final = (
    "DefaultCPUAllocator",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
)
"""Of those that have no exception type of their own: the allocators of the CPU and of mps, and what CUDA and its
libraries (cuBLAS, cuDNN) take for themselves, past torch's allocator."""
_WITH_STATISTICS: Final = ("cuda", "xpu")
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def out_of_memory(
    error: BaseException,
    device: torch.device,
    *,
    phase: Phase,
    step: int | None,
    limit_bytes: int | None,
    told: str,
) -> OutOfMemory:
    """What an error that `is_out_of_memory` tells; to be asked while it is handled, as its traceback holds tensors.

    Args:
        device: that of the run; the error may be about the host's memory all the same.
        limit_bytes: that of `trainer.memory_limit_gib`.
        told: the error in one line.
    """
    return OutOfMemory(
        phase=phase,
        step=step,
        requested_bytes=error.requested_bytes if isinstance(error, MemoryLimitError) else _asked_for(str(error)),
        in_use_bytes=error.in_use_bytes if isinstance(error, MemoryLimitError) else _in_use(error, device),
        limit_bytes=limit_bytes,
        told=told,
    )


def _asked_for(message: str) -> int | None:
    """torch keeps the size in the text alone: exact on the CPU, on a GPU with two decimals."""
    return _size(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", message)


def _in_use(error: BaseException, device: torch.device) -> int | None:
    """By tensors on a GPU; by the process, where the host had no more."""
    if device.type not in _WITH_STATISTICS or not isinstance(error, torch.OutOfMemoryError):
        return int(psutil.Process().memory_info().rss)
    # The allocator's statistics are those of now: some tensors have gone since, as the error went up.
    then = _size(r"allocated memory ([\d.]+) (bytes|KiB|MiB|GiB) is allocated", str(error))
    return int(torch.get_device_module(device).memory_allocated(device)) if then is None else then


def _size(pattern: str, message: str) -> int | None:
    found = re.search(pattern, message, re.IGNORECASE)
    return None if found is None else round(float(found[1]) * _UNITS[found[2]])
