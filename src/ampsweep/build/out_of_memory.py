"""Which errors mean that there was not enough memory."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU allocator has no exception type of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
