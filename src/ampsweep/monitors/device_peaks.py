"""Peak FLOP/s of devices, and a training's share of the peak (MFU)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ampsweep.monitors.environment import device_name
from ampsweep.speed.devices import device_of_driver


@dataclass(frozen=True, slots=True)
class ComputePeak:
    """The peak of a device for a mix of operations."""

    tflops_per_sec: float  # rate of the mix in TFLOP/s if every part ran at the peak of its dtype
    by_dtype: dict[str, float]  # peak in TFLOP/s by the dtype of operands; float32 multiplied in TF32 is `tf32`
    source: str


def dense_peak(device_name: str, flops: Mapping[str, int]) -> ComputePeak | None:
    """The peak of a device for a mix of matrix arithmetic: sum(flops) / sum(flops of a dtype / peak of that dtype).
    `device_name` is the driver's; `flops` are operations by dtype of their operands, with `tf32` for float32 operands
    in TF32. None without operations, or if the table lacks the device (as every CPU) or a dtype."""
    device = device_of_driver(device_name)
    if device is None or not flops:
        return None
    by_dtype: dict[str, float] = {}
    seconds = 0.0
    for dtype, count in flops.items():
        tflops_per_sec = device.tflops_per_sec(dtype)
        if tflops_per_sec is None:
            return None
        by_dtype["float8" if dtype.startswith("float8_") else dtype] = tflops_per_sec
        seconds += count / (1e12 * tflops_per_sec)
    return ComputePeak(sum(flops.values()) / (1e12 * seconds), by_dtype, device.source)


class Efficiency:
    """FLOP/s and their share of the device's peak (MFU: Chowdhery et al. 2022, arXiv:2204.02311, app. B). Both count
    the model's own operations, without recomputation; causal attention counts in full. A share over 100 % is impossible
    and means that a figure is wrong: from then on there is none."""

    def __init__(self, device: torch.device, model_flops: Mapping[str, int]) -> None:
        """`model_flops`: operations of a step by their arithmetic, a dtype's name or `tf32`."""
        self._num_operations = sum(model_flops.values())
        self._peak = dense_peak(device_name(device), model_flops)
        self._is_wrong = False

    def figures(self, step_ms: float) -> dict[str, float]:
        """Metrics of steps of this length; empty without operations, and without a share if the peak is unknown."""
        if not self._num_operations:
            return {}
        tflops_per_sec = self._num_operations / 1e9 / step_ms
        figures = {"perf/tflops_per_sec": tflops_per_sec}
        if self._peak is not None:
            self._is_wrong |= tflops_per_sec > self._peak.tflops_per_sec
            if not self._is_wrong:
                figures["perf/mfu_pct"] = 100 * tflops_per_sec / self._peak.tflops_per_sec
        return figures

    def proof(self) -> dict[str, Any] | None:
        """The denominator of the share, and its source; None if the peak is unknown."""
        return None if self._peak is None else asdict(self._peak)
