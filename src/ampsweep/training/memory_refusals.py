"""The recognition of out-of-memory errors."""

import errno
from typing import Final

import torch

_SIGNS: Final = (
    "DefaultCPUAllocator",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
)
"""Texts of out-of-memory errors without an exception type of their own: from the allocators of the CPU and of mps, and
from CUDA and its libraries (cuBLAS, cuDNN), which take memory past torch's allocator."""
_NO_ENGINE: Final = "unable to find an engine to execute this computation"
"""Text of cuDNN's convolutions once no algorithm is left to try. ATen/native/cudnn/Conv_v8.cpp tries one after another,
and goes on to the next whether one cannot do it or torch's allocator has no room for its workspace."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the device or the host had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(sign in text for sign in _SIGNS) or (_NO_ENGINE in text and _allocator_has_refused())


def _allocator_has_refused() -> bool:
    """Tell whether torch's CUDA allocator has refused a request in this process; one that was told ended the run."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    devices = range(torch.cuda.device_count())
    return any(torch.cuda.memory_stats_as_nested_dict(device).get("num_ooms", 0) for device in devices)
