"""Peak arithmetic and memory bandwidth of devices, and the share of the peak that a training uses (MFU)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch

from ampsweep.monitors.environment import device_name

_TERA: Final = 1e12


@dataclass(frozen=True, slots=True)
class ComputePeak:
    """The peak arithmetic of a device for a given mix of operations."""

    tflops_per_sec: float
    """Rate of the mix in TFLOP/s if every part ran at the peak of its dtype."""
    by_dtype: dict[str, float]
    """TFLOP/s of each part by the dtype of its operands; float32 multiplied in TF32 is `tf32`."""
    source: str


def dense_peak(device_name: str, flops: Mapping[str, int]) -> ComputePeak | None:
    """The peak of a device for a mix of matrix arithmetic: sum(flops) / sum(flops of a dtype / peak of that dtype).

    Args:
        device_name: the name that the driver gives.
        flops: operations by dtype name of their operands; those of float32 operands in TF32 by `tf32`.

    Returns:
        None without operations, and where the table lacks the device (as every CPU) or a dtype on it.
    """
    row = _row(device_name)
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
        seconds += count / (_TERA * tflops_per_sec)
    return ComputePeak(sum(flops.values()) / (_TERA * seconds), by_dtype, row.source)


def memory_bytes_per_sec(device_name: str) -> float | None:
    """The memory bandwidth of a device, reads and writes together; None where the table lacks the device."""
    row = _row(device_name)
    return None if row is None else row.tb_per_sec * _TERA


def _row(device_name: str) -> "_Row | None":
    return _ROWS.get(device_name.removeprefix("NVIDIA ").removeprefix("Tesla "))


@dataclass(frozen=True, slots=True)
class _Row:
    """TFLOP/s at boost clock, dense (without structured sparsity), with products accumulated in float32.

    float32 is the rate of the ordinary units, all others are those of the tensor cores.
    """

    source: str
    """Document that the figures come from."""
    float32: float
    float16: float
    tb_per_sec: float
    """Memory bandwidth in 10**12 bytes per second."""
    tf32: float | None = None
    bfloat16: float | None = None
    float8: float | None = None


_AMPERE: Final = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_ADA: Final = "NVIDIA Ada GPU architecture whitepaper"
_HOPPER: Final = "NVIDIA H100 Tensor Core GPU architecture whitepaper"

_V100_SXM2: Final = _Row("NVIDIA V100 data sheet", float32=15.7, float16=125.0, tb_per_sec=0.9)
_V100_PCIE: Final = _Row("NVIDIA V100 data sheet", float32=14.0, float16=112.0, tb_per_sec=0.9)
_A100: Final = _Row("NVIDIA A100 data sheet", float32=19.5, tf32=156.0, float16=312.0, bfloat16=312.0, tb_per_sec=1.555)
_A100_80GB_SXM: Final = replace(_A100, tb_per_sec=2.039)
_A100_64GB: Final = _Row(
    "Turisini et al., LEONARDO, arXiv:2307.16885: an A100 of 124 multiprocessors; rates of the A100 data sheet for 108",
    float32=22.4,
    tf32=179.1,
    float16=358.2,
    bfloat16=358.2,
    tb_per_sec=1.64,
)
_A100_80GB_PCIE: Final = replace(_A100, tb_per_sec=1.935)
_H100_SXM: Final = _Row(
    _HOPPER, float32=66.9, tf32=494.7, float16=989.4, bfloat16=989.4, float8=1978.9, tb_per_sec=3.35
)
_H100_PCIE: Final = _Row(
    _HOPPER, float32=51.2, tf32=378.0, float16=756.0, bfloat16=756.0, float8=1513.0, tb_per_sec=2.0
)
_H100_NVL: Final = _Row(
    "NVIDIA H100 data sheet", float32=60.0, tf32=417.5, float16=835.5, bfloat16=835.5, float8=1670.5, tb_per_sec=3.9
)
_H200_NVL: Final = _Row(
    "NVIDIA H200 data sheet", float32=60.0, tf32=417.5, float16=835.5, bfloat16=835.5, float8=1670.5, tb_per_sec=4.8
)
_B200: Final = _Row(
    "NVIDIA HGX B200 data sheet, an eighth of its 8 GPUs",
    float32=75.0,
    tf32=1125.0,
    float16=2250.0,
    bfloat16=2250.0,
    float8=4500.0,
    tb_per_sec=7.7,
)
_B300: Final = replace(_B200, source="NVIDIA HGX B300 data sheet, an eighth of its 8 GPUs", tb_per_sec=8.0)
_OF_H100: Final = "data sheet; arithmetic of H100 SXM, the same processor"


def _rtx_50(float32: float, tb_per_sec: float) -> _Row:
    """A GeForce RTX 50: its tensor cores do twice the operations of its ordinary units in half precision (a sixteenth
    of the advertised AI TOPS, which are FP4 with sparsity), four times in FP8, and as many in TF32."""
    return _Row(
        "NVIDIA RTX Blackwell GPU architecture whitepaper",
        float32=float32,
        tf32=float32,
        float16=2 * float32,
        bfloat16=2 * float32,
        float8=4 * float32,
        tb_per_sec=tb_per_sec,
    )


_ROWS: Final[Mapping[str, _Row]] = {
    "V100-SXM2-16GB": _V100_SXM2,
    "V100-SXM2-32GB": _V100_SXM2,
    "V100-PCIE-16GB": _V100_PCIE,
    "V100-PCIE-32GB": _V100_PCIE,
    "T4": _Row("NVIDIA T4 data sheet", float32=8.1, float16=65.0, tb_per_sec=0.32),
    "A100-SXM4-40GB": _A100,
    "A100-SXM4-80GB": _A100_80GB_SXM,
    "A100-SXM-64GB": _A100_64GB,
    "A100-PCIE-40GB": _A100,
    "A100 80GB PCIe": _A100_80GB_PCIE,
    "A30": _Row("NVIDIA A30 data sheet", float32=10.3, tf32=82.0, float16=165.0, bfloat16=165.0, tb_per_sec=0.933),
    "A10": _Row("NVIDIA A10 data sheet", float32=31.2, tf32=62.5, float16=125.0, bfloat16=125.0, tb_per_sec=0.6),
    "A40": _Row("NVIDIA A40 data sheet", float32=37.4, tf32=74.8, float16=149.7, bfloat16=149.7, tb_per_sec=0.696),
    "RTX A6000": _Row(_AMPERE, float32=38.7, tf32=77.4, float16=154.8, bfloat16=154.8, tb_per_sec=0.768),
    "GeForce RTX 3090": _Row(_AMPERE, float32=35.6, tf32=35.6, float16=71.0, bfloat16=71.0, tb_per_sec=0.936),
    "GeForce RTX 4090": _Row(
        _ADA, float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2, float8=330.3, tb_per_sec=1.008
    ),
    "RTX 6000 Ada Generation": _Row(
        _ADA, float32=91.1, tf32=182.1, float16=364.2, bfloat16=364.2, float8=728.5, tb_per_sec=0.96
    ),
    "L4": _Row(
        "NVIDIA L4 data sheet", float32=30.3, tf32=60.0, float16=121.0, bfloat16=121.0, float8=242.5, tb_per_sec=0.3
    ),
    "L40S": _Row(
        "NVIDIA L40S data sheet",
        float32=91.6,
        tf32=183.0,
        float16=362.05,
        bfloat16=362.05,
        float8=733.0,
        tb_per_sec=0.864,
    ),
    "H100 80GB HBM3": _H100_SXM,
    "H100 PCIe": _H100_PCIE,
    "H100 NVL": _H100_NVL,
    "H200": replace(_H100_SXM, source=f"NVIDIA H200 {_OF_H100}", tb_per_sec=4.8),
    "H200 NVL": _H200_NVL,
    "B200": _B200,
    "B300 SXM6 AC": _B300,
    "GeForce RTX 5090": _rtx_50(104.8, tb_per_sec=1.792),
    "GeForce RTX 5080": _rtx_50(56.3, tb_per_sec=0.96),
    "GeForce RTX 5070 Ti": _rtx_50(43.9, tb_per_sec=0.896),
    "GeForce RTX 5070": _rtx_50(30.9, tb_per_sec=0.672),
    "GeForce RTX 5060 Ti": _rtx_50(23.7, tb_per_sec=0.448),
    "GeForce RTX 5060": _rtx_50(19.2, tb_per_sec=0.448),
    "GH200 480GB": replace(_H100_SXM, source=f"NVIDIA GH200 {_OF_H100}", tb_per_sec=4.0),
}
"""Rows by the driver's name without the maker's; a partition (MIG) has another name and is not listed.

GeForce cards accumulate in float32, as torch has them do, at half the rate that is advertised for float16.
"""


class Efficiency:
    """Arithmetic per second and its share of the device's peak (MFU: Chowdhery et al. 2022, arXiv:2204.02311, app. B).

    Both count the model's own operations, without recomputation; causal attention counts in full. A share over 100 % is
    impossible, so one of its parts must be wrong: it is refused together with all later ones, and the proof says so.
    """

    def __init__(self, device: torch.device, model_flops: Mapping[str, int]) -> None:
        """`model_flops`: operations of a step by their arithmetic: the name of a dtype, or `tf32`."""
        self._num_operations = sum(model_flops.values())
        self._peak = dense_peak(device_name(device), model_flops)
        self._refused: str | None = None

    def figures(self, step_ms: float) -> dict[str, float]:
        """Metrics of steps of this length in ms; empty without operations, and without a share if no peak is known."""
        if not self._num_operations:
            return {}
        tflops_per_sec = self._num_operations / 1e9 / step_ms
        figures = {"perf/tflops_per_sec": tflops_per_sec}
        if self._peak is not None and self._refused is None:
            mfu_pct = 100 * tflops_per_sec / self._peak.tflops_per_sec
            if mfu_pct <= 100:
                return figures | {"perf/mfu_pct": mfu_pct}
            self._refused = (
                f"perf/mfu_pct would be {mfu_pct:.1f}: {tflops_per_sec:g} TFLOP/s in steps of {step_ms:g} ms, of "
                f"{self._peak.tflops_per_sec:g} that the device can do"
            )
        return figures

    def proof(self) -> dict[str, Any] | None:
        """The denominator of the share, its source, and a share that was refused; None where no peak is known."""
        if self._peak is None:
            return None
        return asdict(self._peak) | ({} if self._refused is None else {"refused": self._refused})
