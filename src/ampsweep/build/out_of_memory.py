"""Which errors mean that there was not enough memory."""

from typing import Final

import torch

_SIGNS: Final = ("DefaultCPUAllocator", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""Of those that have no exception type of their own: the CPU's allocator, and what CUDA and its libraries (cuBLAS,
cuDNN) take for themselves, past torch's allocator."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
