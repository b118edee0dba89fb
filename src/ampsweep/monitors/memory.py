"""Measurement of the memory that a run takes, by the allocator, the process and the traced step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from ampsweep.memory_categories import memory_key
from ampsweep.monitors.nvml import NvmlDevice, told_by_nvml
from ampsweep.observe.host_memory import HostPeak, measure_host_peak, peak_resident_bytes
from ampsweep.observe.step import TracedStep
from ampsweep.record.parts import MemoryUse
from ampsweep.text import GIB

_WITH_STATISTICS: Final = ("cuda", "xpu")
"""Devices whose allocator remembers its peaks."""
_FARTHEST_LOOK: Final = 32
"""Most steps between two looks at the allocator's growth."""


class MemoryMonitor:
    """Peaks of allocated, reserved and process memory of one run in one process; the run begins when this is made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._allocator: Any = torch.get_device_module(device) if device.type in _WITH_STATISTICS else None
        self._is_steady = False
        # Peaks up to when the allocator last began to count anew.
        self._run_allocated = self._run_reserved = self._steady_allocated = 0
        self._refused = self._retried = 0
        """The allocator's counts of refused requests when the run began, and of retried ones after warm-up."""
        self._host_peak: HostPeak | None = None
        self._step_peak: int | None = None
        if self._allocator is not None:
            self._allocator.empty_cache()  # what was freed before the run is no memory of it, nor its peaks
            self._allocator.reset_peak_memory_stats(device)
            counted = self._counted()
            self._refused, self._retried = counted.num_refused, counted.num_retried

    def growth(self) -> "AllocatorGrowth | None":
        """A watch over the allocator's growth; None on devices without allocator statistics."""
        return None if self._allocator is None else AllocatorGrowth(self._counted)

    def after_warmup(self) -> None:
        """Begin to count the peak of the steps after warm-up."""
        self._count_anew()
        self._is_steady = True
        if self._allocator is not None:
            self._retried = self._counted().num_retried

    @contextmanager
    def one_step(self, *, is_profiled: bool = False) -> Iterator[None]:
        """Take the allocator's peak of the code inside by itself; the other peaks include it.

        The profile of a step that `is_profiled` has the peak on a host.
        """
        if self._device.type == "cpu" and not is_profiled:
            with measure_host_peak() as self._host_peak:
                yield
            return
        self._count_anew()
        yield
        if self._allocator is not None:
            self._step_peak = self._counted().allocated_peak

    def of_step(self, traced: TracedStep) -> MemoryUse:
        """Bytes of the step that was traced or profiled inside `one_step`, for the record.

        The allocator's own peak is of everything that this process has on cuda or xpu, on the CPU of what the step used
        and allocated; elsewhere it is absent.
        """
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
        self._count_anew()
        return self._run_allocated, self._run_reserved, self._steady_allocated

    def go_on(self, peaks: tuple[int, int, int]) -> None:
        """Count the peaks of a process before this one, too."""
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
        """Peaks so far in GiB by metric key, and the categories of the traced step at its peak; takes microseconds.

        Without the allocator's statistics the traced step stands for the steps after warm-up.
        """
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

    def _count_anew(self) -> None:
        """Keep the peaks so far and let the allocator count from what is allocated now."""
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
        return told_by_nvml(self._device, NvmlDevice.process_gib)

    def _counted(self) -> "Counted":
        """Read the allocator's counters; zeros before it was ever used."""
        statistics = self._allocator.memory_stats_as_nested_dict(self._device)
        allocated, reserved = (
            statistics[key]["all"] if statistics else {} for key in ("allocated_bytes", "reserved_bytes")
        )
        return Counted(
            allocated.get("peak", 0),
            reserved.get("peak", 0),
            reserved.get("allocated", 0),
            statistics.get("num_alloc_retries", 0),
            statistics.get("num_ooms", 0),
        )


class AllocatorGrowth:
    """Finds the steps in which the allocator may have taken memory from the device, which makes a step slower.

    Reading its statistics takes many microseconds, so that it is looked at after every step at first and after each
    growth, then after two, four and at most 32 steps. If it has grown, all steps since the last look are suspect; but
    those in which the device was full and memory was given back first are no exceptions near the limit.
    """

    def __init__(self, read: "Callable[[], Counted]") -> None:
        self._read = read
        self._distance, self._num_unseen = 1, 0
        self._known = read()

    def begin(self) -> None:
        """Begin to watch: memory taken before now belongs to no step that counts."""
        self._known, self._num_unseen = self._read(), 0

    def step_ended(self) -> int:
        """Count a step; return how many of the latest steps are suspect, 0 if no look was due or nothing was taken."""
        self._num_unseen += 1
        return self.look() if self._num_unseen >= self._distance else 0

    def look(self) -> int:
        """Look now and return the number of suspect steps; call it before the times of steps are read."""
        if self._num_unseen == 0:
            return 0
        now, known = self._read(), self._known
        suspects = self._num_unseen if now.taken > known.taken and now.num_retried == known.num_retried else 0
        self._distance = 1 if suspects else min(2 * self._distance, _FARTHEST_LOOK)
        self._known, self._num_unseen = now, 0
        return suspects


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of a CUDA-like allocator, in bytes."""

    allocated_peak: int
    """Peak of tensors and workspaces since the peaks were last reset."""
    reserved_peak: int
    taken: int
    """Total taken from the device since the process began, including what was given back."""
    num_retried: int
    """Requests since the process began for which the device was full, so that unused memory was given back first."""
    num_refused: int
    """Requests since the process began that were refused even then."""
