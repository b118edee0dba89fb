"""Memory snapshots: every allocation of a training's first steps with its call stack, for pytorch.org/memory_viz."""

from pathlib import Path
from typing import Final

import torch

_MAX_EVENTS: Final = 100_000
"""Events kept per device; older ones are dropped. Each takes some hundred bytes in the file."""


class MemorySnapshot:
    """Records the CUDA allocator's events between `begin` and `save`, for https://pytorch.org/memory_viz.

    Recording costs about 2 us an allocation, so it should end before steps are timed. The functions that torch
    documents for it have private names (https://docs.pytorch.org/docs/stable/torch_cuda_memory.html).
    """

    def __init__(self, device: torch.device, path: Path) -> None:
        """`path` is the file to write.

        Raises:
            ValueError: the device's allocator cannot be recorded.
        """
        if reason := why_no_snapshot(device):
            raise ValueError(reason)
        self._path = path
        self._is_recording = False

    def begin(self) -> None:
        """Begin to record."""
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=_MAX_EVENTS)
        self._is_recording = True

    def save(self) -> None:
        """End the recording and write the file; does nothing a second time or without `begin`."""
        if not self._is_recording:
            return
        self._is_recording = False
        try:
            torch.cuda.memory._dump_snapshot(str(self._path))  # type: ignore[no-untyped-call]
        finally:
            torch.cuda.memory._record_memory_history(None)


def why_no_snapshot(device: torch.device) -> str | None:
    """One sentence saying why the device's memory cannot be recorded, or None where it can."""
    if device.type == "cuda":
        return None
    return f"a memory snapshot needs a CUDA device; this one is {device.type}"
