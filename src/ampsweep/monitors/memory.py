"""Memory of a run, measured by the allocator, the process and the traced step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ampsweep.memory_categories import memory_key
from ampsweep.monitors.nvml import NvmlDevice, query_nvml
from ampsweep.observe.host_memory import HostPeak, measure_host_peak, peak_resident_bytes
from ampsweep.observe.step import TracedStep
from ampsweep.records.sections import MemoryUse
from ampsweep.text import GIB


class MemoryMonitor:
    """Peaks of allocated, reserved and process memory since its construction at the beginning of a run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._allocator: Any = torch.get_device_module(device) if device.type in ("cuda", "xpu") else None
        self._is_steady = False
        # Peaks until the last reset of the allocator's peaks.
        self._run_allocated = self._run_reserved = self._steady_allocated = 0
        # The allocator's counts of refused requests when the run began, and of retried requests after warm-up.
        self._refused = self._retried = 0
        self._host_peak: HostPeak | None = None
        self._step_peak: int | None = None
        if self._allocator is not None:
            self._allocator.empty_cache()  # memory freed before the run, and its peaks, do not count
            self._allocator.reset_peak_memory_stats(device)
            counted = self._counted()
            self._refused, self._retried = counted.num_refused, counted.num_retried

    def growth(self) -> "AllocatorGrowth | None":
        """A watch of the allocator's growth; None without allocator statistics."""
        return None if self._allocator is None else AllocatorGrowth(self._counted)

    def after_warmup(self) -> None:
        self._reset_peaks()
        self._is_steady = True
        if self._allocator is not None:
            self._retried = self._counted().num_retried

    @contextmanager
    def one_step(self, *, by_profiler: bool = True) -> Iterator[None]:
        """Measure the peak inside separately; the other peaks include it. On a host only a profiler could."""
        if self._device.type == "cpu" and by_profiler:
            with measure_host_peak() as self._host_peak:
                yield
            return
        self._reset_peaks()
        yield
        if self._allocator is not None:
            self._step_peak = self._counted().allocated_peak

    def of_step(self, traced: TracedStep) -> MemoryUse:
        """Bytes of the step inside `one_step`, for the record. The allocator's own peak includes everything that this
        process has on cuda or xpu, and on the CPU the step's own memory; elsewhere it is absent."""
        allocated = self._step_peak
        if self._host_peak is not None and self._host_peak.peak_bytes is not None:
            allocated = traced.held_bytes + self._host_peak.peak_bytes
        return MemoryUse(
            peak_bytes=traced.peak_bytes,
            peak=traced.peak,
            end_of_forward=traced.end_of_forward,
            kept=traced.kept or None,
            allocator_peak_bytes=allocated,
            unattributed_bytes=None if allocated is None else allocated - traced.peak_bytes,
        )

    def peaks(self) -> tuple[int, int, int]:
        """The allocator's peaks so far in bytes, for `go_on` in another process."""
        self._reset_peaks()
        return self._run_allocated, self._run_reserved, self._steady_allocated

    def go_on(self, peaks: tuple[int, int, int]) -> None:
        self._run_allocated, self._run_reserved, self._steady_allocated = peaks

    def summary(self, traced: MemoryUse | None = None) -> dict[str, float]:
        """Figures of `row` and the process's memory: its peak resident set on a CPU, its current memory elsewhere."""
        figures, process_gib = self.row(traced), self._process_gib()
        if process_gib is not None:
            figures["memory/process_gib"] = process_gib
        if self._allocator is not None:
            counted = self._counted()
            figures["memory/num_retries"] = counted.num_retried - self._retried
            figures["memory/num_refused"] = counted.num_refused - self._refused
        return figures

    def row(self, traced: MemoryUse | None = None) -> dict[str, float]:
        """Peaks so far in GiB by metric key, and the categories of the traced step; takes microseconds. Without
        allocator statistics the traced step represents the steps after warm-up."""
        bytes_by_key: dict[str, int] = {}
        if self._allocator is not None:
            counted = self._counted()
            bytes_by_key["memory/peak_allocated_run_gib"] = max(counted.allocated_peak, self._run_allocated)
            bytes_by_key["memory/peak_reserved_gib"] = max(counted.reserved_peak, self._run_reserved)
            if self._is_steady:
                bytes_by_key["memory/peak_allocated_gib"] = max(counted.allocated_peak, self._steady_allocated)
        elif traced is not None and traced.peak_bytes is not None:
            bytes_by_key["memory/peak_allocated_gib"] = traced.peak_bytes
        if traced is not None and traced.peak is not None:
            bytes_by_key |= {memory_key(category): num_bytes for category, num_bytes in traced.peak.items()}
        return {key: num_bytes / GIB for key, num_bytes in bytes_by_key.items()}

    def _reset_peaks(self) -> None:
        if self._allocator is None:
            return
        counted = self._counted()
        self._run_allocated = max(self._run_allocated, counted.allocated_peak)
        self._run_reserved = max(self._run_reserved, counted.reserved_peak)
        if self._is_steady:
            self._steady_allocated = max(self._steady_allocated, counted.allocated_peak)
        self._allocator.reset_peak_memory_stats(self._device)

    def _process_gib(self) -> float | None:
        if self._device.type == "cpu":
            return peak_resident_bytes() / GIB
        if self._device.type == "mps":
            return torch.mps.driver_allocated_memory() / GIB
        return query_nvml(self._device, NvmlDevice.process_gib)

    def _counted(self) -> "Counted":
        """Read the allocator's counters; zeros before its first use."""
        found = self._allocator.memory_stats_as_nested_dict(self._device)
        allocated, reserved = (found.get(key, {}).get("all", {}) for key in ("allocated_bytes", "reserved_bytes"))
        sizes = allocated.get("peak", 0), reserved.get("peak", 0), reserved.get("allocated", 0)
        return Counted(*sizes, found.get("num_alloc_retries", 0), found.get("num_ooms", 0))


class AllocatorGrowth:
    """Finds the steps that may be slow because the allocator took memory from the device. Reading its statistics takes
    many microseconds: they are read after every step at first and after each growth, then after two, four and at most
    32 steps. After a growth all steps since the last reading are suspect, unless the device was full and memory was
    given back first, which is usual near the limit."""

    def __init__(self, read: "Callable[[], Counted]") -> None:
        self._read = read
        self._distance, self._num_unseen = 1, 0
        self._known = read()

    def begin(self) -> None:
        """Begin to watch: memory taken before makes no step suspect."""
        self._known, self._num_unseen = self._read(), 0

    def step_ended(self) -> int:
        """Count a step; return the number of latest steps that are suspect, 0 if no reading was due."""
        self._num_unseen += 1
        return self.look() if self._num_unseen >= self._distance else 0

    def look(self) -> int:
        """Read now and return the number of suspect steps; call it before the times of steps are read."""
        if self._num_unseen == 0:
            return 0
        now, known = self._read(), self._known
        suspects = self._num_unseen if now.taken > known.taken and now.num_retried == known.num_retried else 0
        self._distance = 1 if suspects else min(2 * self._distance, 32)
        self._known, self._num_unseen = now, 0
        return suspects


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of a CUDA-like allocator, in bytes."""

    allocated_peak: int  # peak of tensors and workspaces since the last reset
    reserved_peak: int
    taken: int  # total ever taken from the device, including memory given back
    num_retried: int  # requests that met a full device, so that unused memory was given back first
    num_refused: int  # requests that were refused even then
