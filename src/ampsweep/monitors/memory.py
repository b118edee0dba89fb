"""How much memory a run takes."""

from typing import Any, Final

import torch

from ampsweep.monitors.host import peak_resident_bytes
from ampsweep.monitors.nvml import GIB, NvmlDevice
from ampsweep.monitors.trace import TracedStep

_WITH_STATISTICS: Final = ("cuda", "xpu")
"""Devices whose allocator remembers its peaks."""


class MemoryMonitor:
    """Peaks of allocated, reserved and process memory of one run in one process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._allocator: Any = torch.get_device_module(device) if device.type in _WITH_STATISTICS else None
        self._warmup_allocated: int | None = None
        self._warmup_reserved = 0
        self._taken_bytes = self._taken()

    def grew(self) -> bool:
        """Whether the allocator took memory from the device since the last call, which makes a step slower.

        Costs some microseconds and no synchronization; False on devices without allocator statistics.
        """
        before, self._taken_bytes = self._taken_bytes, self._taken()
        return self._taken_bytes > before

    def after_warmup(self) -> None:
        """Warm-up is over: from here on count the peak of the steady steps."""
        if self._allocator is not None:
            self._warmup_allocated = self._allocator.max_memory_allocated(self._device)
            self._warmup_reserved = self._allocator.max_memory_reserved(self._device)
            self._allocator.reset_peak_memory_stats(self._device)

    def summary(self, traced: TracedStep | None = None) -> dict[str, float]:
        """Peaks in GiB by metric key, and the categories of the traced step at its peak.

        On cuda and xpu the allocator tells the peaks: over the run, and after warm-up if that is over. Elsewhere the
        traced step stands for the steady steps, and nothing tells the peak of the run. The process is measured by its
        resident set on the CPU, by NVML on cuda, by Metal on mps (these two: as it is now).
        """
        bytes_by_key = self._allocated(traced)
        if traced is not None:
            bytes_by_key |= {f"memory/{category}_gib": num_bytes for category, num_bytes in traced.peak.items()}
        summary = {key: num_bytes / GIB for key, num_bytes in bytes_by_key.items()}
        process_gib = self._process_gib()
        return summary if process_gib is None else summary | {"memory/process_gib": process_gib}

    def _allocated(self, traced: TracedStep | None) -> dict[str, int]:
        if self._allocator is None:
            return {} if traced is None else {"memory/peak_allocated_gib": traced.peak_bytes}
        allocated = self._allocator.max_memory_allocated(self._device)
        peaks = {
            "memory/peak_allocated_run_gib": max(allocated, self._warmup_allocated or 0),
            "memory/peak_reserved_gib": max(self._allocator.max_memory_reserved(self._device), self._warmup_reserved),
        }
        return peaks if self._warmup_allocated is None else peaks | {"memory/peak_allocated_gib": allocated}

    def _process_gib(self) -> float | None:
        if self._device.type == "cpu":
            return peak_resident_bytes() / GIB
        if self._device.type == "mps":
            return torch.mps.driver_allocated_memory() / GIB
        nvml = NvmlDevice.open(self._device)
        if nvml is None:
            return None
        try:
            return nvml.process_gib()
        finally:
            nvml.close()

    def _taken(self) -> int:
        """Bytes the allocator has taken from the device since the process began, those given back included."""
        if self._allocator is None:
            return 0
        statistics = self._allocator.memory_stats_as_nested_dict(self._device)
        return int(statistics.get("reserved_bytes", {}).get("all", {}).get("allocated", 0))
