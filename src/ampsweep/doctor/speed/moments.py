"""Moments of a step: on the host, or events in an accelerator's queue."""

from time import perf_counter
from typing import Any, Final

import torch

_QUEUED: Final = ("cuda", "xpu", "mps")
"""Devices that work asynchronously from a queue and can record times themselves."""


class Moments:
    """Takes moments and tells the time between two of them, on the device that computes."""

    def __init__(self, device: torch.device) -> None:
        self.has_queue = device.type in _QUEUED
        self._module = torch.get_device_module(device) if self.has_queue else None

    def now(self) -> Any:
        """Take a moment; nothing waits for it."""
        if self._module is None:
            return perf_counter()
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def between_ms(self, start: Any, end: Any) -> float:
        """The time between two moments in ms; waits for the later one."""
        if self._module is None:
            return float(1e3 * (end - start))
        end.synchronize()
        return float(start.elapsed_time(end))

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self._module is not None:
            self._module.synchronize()
