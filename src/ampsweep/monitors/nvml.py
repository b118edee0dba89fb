"""Readings of one GPU from the NVIDIA driver, through NVML."""

import os
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final, Self, TypeVar

import torch

from ampsweep.text import GIB

Answer = TypeVar("Answer")

_THROTTLED: Final = ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown")
"""Heat or hardware protection; the power cap, a setting, does not count."""


class NvmlDevice:
    """A GPU, read through NVML; values that the driver or the GPU does not report are None or absent."""

    averaged_s: Final = {"device/utilization_pct": 1.0, "device/power_w": 1.0}
    """Seconds before a reading that it averages over: "between 1 second and 1/6 second, depending on the product"
    (torch.cuda.utilization); a second on Ampere (except GA100) and newer (NVML API reference). Others are momentary."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, device: torch.device) -> Self | None:
        """Open the GPU that torch calls `device`; None if NVML is missing or does not know it."""
        if device.type != "cuda":
            return None
        import pynvml  # not at the top: a run without a GPU does not wait for it

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        uuid = torch.cuda.get_device_properties(device).uuid  # numbers differ: torch's obey CUDA_VISIBLE_DEVICES
        for name in (f"GPU-{uuid}", f"MIG-{uuid}"):  # a partition has another
            with suppress(pynvml.NVMLError):
                return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
        pynvml.nvmlShutdown()
        return None

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def readings(self) -> dict[str, float]:
        values = {key: self._try(read) for key, read in _READINGS.items()}
        return {key: value for key, value in values.items() if value is not None}

    def energy_j(self) -> float | None:
        """The GPU's energy counter, in joules since the driver was loaded (GPUs since Volta have it)."""
        return self._try(lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)

    def process_gib(self) -> float | None:
        """Memory of this process on the GPU; None if the driver does not know the process by its id (containers)."""
        running = self._try(lambda nvml, handle: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        of_each = (process.usedGpuMemory for process in running if process.pid == os.getpid())
        used = [num_bytes for num_bytes in of_each if num_bytes is not None]
        return sum(used) / GIB if used else None

    def held_gib(self) -> float | None:
        """Memory that processes hold on the GPU, without the driver's own."""
        return self._try(lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used / GIB)

    def compute_processes(self) -> frozenset[int] | None:
        """Ids of the processes that compute on the GPU and draw nothing; in a container None or ids of the host."""
        computing = self._try(lambda nvml, handle: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        drawing = self._try(lambda nvml, handle: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or []
        if computing is None:
            return None
        return frozenset(process.pid for process in computing) - {process.pid for process in drawing}

    def power_limit_w(self) -> float | None:
        """The power limit in effect, above which the driver slows the GPU down."""
        return self._try(lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3)

    def driver_version(self) -> str | None:
        return self._try(lambda nvml, _: str(nvml.nvmlSystemGetDriverVersion()))

    def _try(self, read: Callable[[Any, Any], Answer]) -> Answer | None:
        try:
            return read(self._nvml, self._handle)
        except self._nvml.NVMLError:
            return None


def query_nvml(device: torch.device, read: Callable[[NvmlDevice], Answer]) -> Answer | None:
    """Read once from the GPU that torch calls `device`; None if NVML is missing or does not know it."""
    if (nvml := NvmlDevice.open(device)) is None:
        return None
    with closing(nvml):
        return read(nvml)


_READINGS: Final[dict[str, Callable[[Any, Any], float]]] = {
    "device/utilization_pct": lambda nvml, handle: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "device/memory_used_gib": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used / GIB,
    "device/power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
    "device/temperature_c": lambda nvml, gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
    "device/clock_mhz": lambda nvml, handle: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    "device/throttled_pct": lambda nvml, handle: _is_slowed_down(nvml, handle, *_THROTTLED),
    "device/power_capped_pct": lambda nvml, handle: _is_slowed_down(nvml, handle, "SwPowerCap"),
}


def _is_slowed_down(nvml: Any, handle: Any, *reasons: str) -> float:
    """100 if the driver currently gives any of these reasons for low clocks, else 0."""
    now = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return 100.0 * any(now & getattr(nvml, f"nvmlClocksThrottleReason{reason}") for reason in reasons)
