"""Samples of a device's utilization, memory, power, temperature and clocks, and energy per training sample."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Final, Self

import psutil
import torch

from ampsweep.monitors.nvml import NvmlDevice, query_nvml
from ampsweep.monitors.processors import num_available_cores
from ampsweep.text import GIB

_PEAKS: Final = ("device/memory_used_gib", "memory/process_gib")  # summarized by their maximum, others by their mean
MIN_STRETCH_S: Final = 2.0
"""Shortest stretch that counts: the counter is updated every 20 to 100 ms (Yang et al., SC 2024, arXiv:2312.02741)."""


class DeviceSampler:
    """Samples the device in the background while its context is open: on cuda by NVML; on the CPU this process's own
    use (without its children), processor time in cores and as share of its available cores, and resident memory.
    Unreadable values are absent; other devices have none. The summary covers the time between `resume` and `pause`;
    sampling starts paused. A reading that is itself a mean counts only if all of its period does."""

    def __init__(self, device: torch.device, interval_s: float = 0.1) -> None:
        self._device = device
        self._interval_s = interval_s
        self._thread: Thread | None = None
        self._is_over = False
        self._sample_now = Event()
        self._lock = Lock()
        self._latest: dict[str, float] = {}
        self._series: dict[str, _Series] = {}
        self._counts = False

    def __enter__(self) -> Self:
        source = _Cpu() if self._device.type == "cpu" else NvmlDevice.open(self._device)
        if source is not None:
            self._thread = Thread(target=self._run, args=(source,), name="device-sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._is_over = True
            self._sample_now.set()  # for the last sample
            self._thread.join()

    def latest(self) -> dict[str, float]:
        """The latest sample by metric key, with the energy since sampling began; empty before the first."""
        with self._lock:
            return dict(self._latest)

    def resume(self) -> None:
        self._counts = True
        self._sample_now.set()

    def pause(self) -> None:
        self._counts = False
        self._sample_now.set()

    def summary(self) -> dict[str, float]:
        """Means over the counted time by metric key, maxima for memory, and the energy since sampling began."""
        with self._lock:
            return {key: series.figure(key) for key, series in self._series.items()}

    def _run(self, source: "NvmlDevice | _Cpu") -> None:
        began_s, counts = time.perf_counter(), self._counts
        counts_since_s, began_j = began_s, source.energy_j()
        try:
            is_over = False
            while not is_over:
                self._sample_now.wait(self._interval_s)
                self._sample_now.clear()
                is_over = self._is_over  # read before the last sample, which there always is
                sample, energy_j, now_s = source.readings(), source.energy_j(), time.perf_counter()
                if began_j is not None and energy_j is not None:
                    sample["device/energy_j"] = energy_j - began_j
                with self._lock:
                    self._latest = sample
                    for key, value in sample.items() if counts else ():
                        if source.averaged_s.get(key, 0.0) <= now_s - counts_since_s:
                            self._series.setdefault(key, _Series()).add(value, now_s - began_s)
                counted, began_s, counts = counts, now_s, self._counts
                if not (counted and counts):
                    counts_since_s = now_s
        finally:
            source.close()


@dataclass(slots=True)
class _Series:
    seconds: float = 0.0
    integral: float = 0.0
    most: float = 0.0
    last: float = 0.0

    def add(self, value: float, seconds: float) -> None:
        self.seconds += seconds
        self.integral += value * seconds
        self.most = max(self.most, value)
        self.last = value

    def figure(self, key: str) -> float:
        if key in _PEAKS:
            return self.most
        return self.last if key == "device/energy_j" else self.integral / self.seconds


class _Cpu:
    def __init__(self) -> None:
        self.averaged_s: dict[str, float] = {}
        self._num_cores, self._process = num_available_cores(), psutil.Process()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def readings(self) -> dict[str, float]:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        busy_cores = (cpu_s - self._cpu_s) / (wall_s - self._wall_s)
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return {
            "device/utilization_pct": 100 * busy_cores / self._num_cores,
            "device/busy_cores": busy_cores,
            "memory/process_gib": self._process.memory_info().rss / GIB,
        }

    def energy_j(self) -> None: ...

    def close(self) -> None: ...


class EnergyMeter:
    """Energy per training sample over stretches in which the device did nothing but training steps; callers of `begin`
    and `end` have waited for the device. `read` returns the joules so far, None without a counter; stretches shorter
    than `min_stretch_s` seconds do not count. CPUs are not measured: their counters (RAPL) cover whole packages and
    everything the machine does, and only root may read them since CVE-2020-8694."""

    def __init__(
        self, read: Callable[[], float | None], samples_per_step: int | None, min_stretch_s: float = MIN_STRETCH_S
    ) -> None:
        self._read, self._samples_per_step, self._min_stretch_s = read, samples_per_step, min_stretch_s
        self._began: tuple[float, float, int] | None = None  # time in seconds, joules and steps
        self._joules = 0.0
        self._num_steps = 0

    def begin(self, num_steps: int) -> None:
        joules = self._read()
        self._began = None if joules is None else (time.perf_counter(), joules, num_steps)

    def end(self, num_steps: int) -> None:
        """End the stretch after this many steps; does nothing without `begin`."""
        began, self._began = self._began, None
        if began is None or time.perf_counter() - began[0] < self._min_stretch_s:
            return
        joules = self._read()
        if joules is not None:
            self._joules += joules - began[1]
            self._num_steps += num_steps - began[2]

    def summary(self) -> dict[str, float]:
        if self._num_steps == 0 or self._samples_per_step is None:
            return {}
        return {"device/energy_per_sample_j": self._joules / (self._num_steps * self._samples_per_step)}


def read_energy_j(device: torch.device) -> float | None:
    """The device's energy counter in joules; None without a counter."""
    return query_nvml(device, NvmlDevice.energy_j)
