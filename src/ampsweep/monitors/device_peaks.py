"""Peak FLOP/s of devices, and a training's share of the peak (MFU)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch

from ampsweep.monitors.environment import device_name


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
    row = _ROWS.get(device_name.removeprefix("NVIDIA ").removeprefix("Tesla "))
    if row is None or not flops:
        return None
    rates = asdict(row)
    by_dtype: dict[str, float] = {}
    seconds = 0.0
    for dtype, count in flops.items():
        arithmetic = "float8" if dtype.startswith("float8_") else dtype
        tflops_per_sec: float | None = rates.get(arithmetic)
        if tflops_per_sec is None:
            return None
        by_dtype[arithmetic] = tflops_per_sec
        seconds += count / (1e12 * tflops_per_sec)
    return ComputePeak(sum(flops.values()) / (1e12 * seconds), by_dtype, row.source)


@dataclass(frozen=True, slots=True)
class _Row:
    """Dense TFLOP/s at boost clock, accumulated in float32, from a document; of the tensor cores, except float32."""

    source: str
    float32: float
    tf32: float | None
    float16: float
    bfloat16: float | None = None
    float8: float | None = None


_AMPERE: Final = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_ADA: Final = "NVIDIA Ada GPU architecture whitepaper"
_BLACKWELL: Final = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_A100: Final = _Row("NVIDIA A100 data sheet", 19.5, 156.0, 312.0, 312.0)
_H100: Final = _Row("NVIDIA H100 Tensor Core GPU architecture whitepaper", 66.9, 494.7, 989.4, 989.4, 1978.9)
_OF_H100: Final = "data sheet; arithmetic of H100 SXM, the same processor"
_EIGHTH: Final = "data sheet, an eighth of its 8 GPUs"

_ROWS: Final[Mapping[str, _Row]] = {
    **dict.fromkeys(("V100-SXM2-16GB", "V100-SXM2-32GB"), _Row("NVIDIA V100 data sheet", 15.7, None, 125.0)),
    **dict.fromkeys(("V100-PCIE-16GB", "V100-PCIE-32GB"), _Row("NVIDIA V100 data sheet", 14.0, None, 112.0)),
    "T4": _Row("NVIDIA T4 data sheet", 8.1, None, 65.0),
    **dict.fromkeys(("A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "A100 80GB PCIe"), _A100),
    "A30": _Row("NVIDIA A30 data sheet", 10.3, 82.0, 165.0, 165.0),
    "A10": _Row("NVIDIA A10 data sheet", 31.2, 62.5, 125.0, 125.0),
    "A40": _Row("NVIDIA A40 data sheet", 37.4, 74.8, 149.7, 149.7),
    "RTX A6000": _Row(_AMPERE, 38.7, 77.4, 154.8, 154.8),
    "GeForce RTX 3090": _Row(_AMPERE, 35.6, 35.6, 71.0, 71.0),
    "GeForce RTX 4090": _Row(_ADA, 82.6, 82.6, 165.2, 165.2, 330.3),
    "RTX 6000 Ada Generation": _Row(_ADA, 91.1, 182.1, 364.2, 364.2, 728.5),
    "L4": _Row("NVIDIA L4 data sheet", 30.3, 60.0, 121.0, 121.0, 242.5),
    "L40S": _Row("NVIDIA L40S data sheet", 91.6, 183.0, 362.05, 362.05, 733.0),
    "H100 80GB HBM3": _H100,
    "H100 PCIe": _Row(_H100.source, 51.2, 378.0, 756.0, 756.0, 1513.0),
    "H100 NVL": _Row("NVIDIA H100 data sheet", 60.0, 417.5, 835.5, 835.5, 1670.5),
    "H200": replace(_H100, source=f"NVIDIA H200 {_OF_H100}"),
    "H200 NVL": _Row("NVIDIA H200 data sheet", 60.0, 417.5, 835.5, 835.5, 1670.5),
    "GH200 480GB": replace(_H100, source=f"NVIDIA GH200 {_OF_H100}"),
    "B200": _Row(f"NVIDIA HGX B200 {_EIGHTH}", 75.0, 1125.0, 2250.0, 2250.0, 4500.0),
    "B300 SXM6 AC": _Row(f"NVIDIA HGX B300 {_EIGHTH}", 75.0, 1125.0, 2250.0, 2250.0, 4500.0),
    "GeForce RTX 5090": _Row(_BLACKWELL, 104.8, 104.8, 209.6, 209.6, 419.2),
    "GeForce RTX 5080": _Row(_BLACKWELL, 56.3, 56.3, 112.6, 112.6, 225.2),
    "GeForce RTX 5070 Ti": _Row(_BLACKWELL, 43.9, 43.9, 87.8, 87.8, 175.6),
    "GeForce RTX 5070": _Row(_BLACKWELL, 30.9, 30.9, 61.8, 61.8, 123.6),
    "GeForce RTX 5060 Ti": _Row(_BLACKWELL, 23.7, 23.7, 47.4, 47.4, 94.8),
    "GeForce RTX 5060": _Row(_BLACKWELL, 19.2, 19.2, 38.4, 38.4, 76.8),
}
"""Rows by the driver's name without the maker; partitions (MIG) have other names and are not listed. GeForce cards
accumulate in float32, as torch does, at half the rate that is advertised for float16."""


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
