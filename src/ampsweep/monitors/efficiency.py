"""How much of a device's arithmetic a training uses."""

from collections.abc import Mapping
from typing import Any

import torch

from ampsweep.monitors.device_peaks import dense_peak
from ampsweep.monitors.environment import device_name


class Efficiency:
    """Arithmetic a second, and its share of the device's peak (MFU: Chowdhery et al. 2022, arXiv:2204.02311, app. B).

    Both count the model's own operations: what activation checkpointing does again is no progress, and a compiler may
    do otherwise than the step that was traced. Causal attention counts in full, which lets very long sequences
    seem faster than they are. A share over 100 % cannot be: it is refused together with all that would follow, since
    one of its parts is wrong, and the proof says so.
    """

    def __init__(self, device: torch.device, model_flops: Mapping[str, int], *, tf32: bool) -> None:
        """`model_flops`: operations of a step by dtype name; `tf32`: float32 is multiplied in TF32."""
        self._num_operations = sum(model_flops.values())
        self._peak = dense_peak(device_name(device), model_flops, tf32=tf32)
        self._refused: str | None = None

    def figures(self, step_ms: float) -> dict[str, float]:
        """Metrics of steps of this length; without operations none, and without a known peak no share of it."""
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
