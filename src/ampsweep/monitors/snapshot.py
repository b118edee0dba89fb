"""Every allocation of a training's first steps, with the call that made it, for https://pytorch.org/memory_viz."""

from pathlib import Path
from typing import Final

import torch

_MAX_EVENTS: Final = 100_000
"""Of each device; older ones are forgotten. One takes some hundred bytes in the file."""


class MemorySnapshot:
    """Records what the CUDA allocator does between `begin` and `save`.

    Recording costs about 2 us an allocation, so it should end before steps are timed. torch documents its functions
    under private names and has no others (https://docs.pytorch.org/docs/stable/torch_cuda_memory.html).
    """

    def __init__(self, device: torch.device, path: Path) -> None:
        """What is recorded goes to the file `path`.

        Raises:
            ValueError: the device has no allocator that can be recorded.
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
        """End the recording and write the file; does nothing the second time, or without a beginning."""
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
