"""What the NVIDIA driver tells about a GPU."""

import os
from collections.abc import Callable
from typing import Any, Final, Self

import torch

GIB: Final = 2**30


class NvmlDevice:
    """One GPU through NVML. What the driver or the GPU does not tell is absent."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, device: torch.device) -> Self | None:
        """The GPU that torch calls `device`; None where NVML is missing or does not know it."""
        if device.type != "cuda":
            return None
        import pynvml  # here: a run without a GPU does not wait for it

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        handle = _find(pynvml, device)
        if handle is None:
            pynvml.nvmlShutdown()
            return None
        return cls(pynvml, handle)

    def close(self) -> None:
        """Let go of NVML."""
        self._nvml.nvmlShutdown()

    def readings(self) -> dict[str, float]:
        """Utilization, memory, power, temperature and clock of this moment by metric key."""
        values = {key: self._try(read) for key, read in _READINGS.items()}
        return {key: value for key, value in values.items() if value is not None}

    def energy_j(self) -> float | None:
        """The GPU's energy counter, in joules since the driver was loaded."""
        counter_mj = self._try(lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return None if counter_mj is None else counter_mj / 1e3

    def process_gib(self) -> float | None:
        """Memory of this process on the GPU; None where the driver does not know it by its id (containers)."""
        used = self._try(
            lambda nvml, handle: [
                process.usedGpuMemory
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                if process.pid == os.getpid() and process.usedGpuMemory is not None
            ]
        )
        return sum(used) / GIB if used else None

    def driver_version(self) -> str | None:
        """Version of the driver."""
        version = self._try(lambda nvml, _: nvml.nvmlSystemGetDriverVersion())
        return None if version is None else str(version)

    def _try(self, read: Callable[[Any, Any], Any]) -> Any:
        try:
            return read(self._nvml, self._handle)
        except self._nvml.NVMLError:
            return None


_READINGS: Final[dict[str, Callable[[Any, Any], float]]] = {
    "device/utilization_pct": lambda nvml, handle: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "device/memory_used_gib": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used / GIB,
    "device/power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
    "device/temperature_c": lambda nvml, handle: float(
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    ),
    "device/clock_mhz": lambda nvml, handle: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
}


def _find(nvml: Any, device: torch.device) -> Any:
    """NVML counts all GPUs, torch those in CUDA_VISIBLE_DEVICES: they meet at the UUID, else at the PCI address."""
    properties: Any = torch.cuda.get_device_properties(device)
    address = f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"
    for find, name in (
        (nvml.nvmlDeviceGetHandleByUUID, f"GPU-{properties.uuid}"),
        (nvml.nvmlDeviceGetHandleByUUID, f"MIG-{properties.uuid}"),
        (nvml.nvmlDeviceGetHandleByPciBusId, address),
    ):
        try:
            return find(name)
        except nvml.NVMLError:
            continue
    return None
