"""Model FLOPs utilization (MFU): the share of a device's peak arithmetic that a training uses."""

from collections.abc import Mapping
from typing import Any

import torch

from ampsweep.monitors.device_peaks import dense_peak
from ampsweep.monitors.environment import device_name


class Efficiency:
    """Arithmetic per second and its share of the device's peak (MFU: Chowdhery et al. 2022, arXiv:2204.02311, app. B).

    Both count the model's own operations: recomputation by activation checkpointing is no progress, and compiled code
    may compute otherwise than the step that was traced. Causal attention counts in full, which makes very long
    sequences seem faster than they are. A share over 100 % is impossible, so one of its parts must be wrong: it is
    refused together with all later ones, and the proof says so.
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
        peak: dict[str, Any] = {
            "tflops_per_sec": self._peak.tflops_per_sec,
            "by_dtype": self._peak.by_dtype,
            "source": self._peak.source,
        }
        return peak if self._refused is None else peak | {"refused": self._refused}
