"""Energy per training sample, from the device's own counter."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from ampsweep.monitors.nvml import NvmlDevice

MIN_STRETCH_S: Final = 2.0
"""Shortest stretch that counts. The counter is updated every 20 to 100 ms (Yang et al., "Part-time Power Measurements",
SC 2024, arXiv:2312.02741), so a reading can be that old: at most 5 % of this time, and too much of a shorter one."""


class EnergyMeter:
    """Energy per training sample over stretches in which the device did nothing but training steps.

    Callers of `begin` and `end` have waited for the device. Stretches that are too short are left out.

    Only NVIDIA GPUs since Volta have a counter of the device alone. CPUs are not measured: their counters (RAPL) cover
    whole processor packages and everything the machine does, only root may read them since CVE-2020-8694, and virtual
    machines have none.

    Args:
        read: returns the joules so far, None where nothing counts them.
        min_stretch_s: how long a stretch must last to count, in seconds.
    """

    def __init__(
        self, read: Callable[[], float | None], samples_per_step: int, min_stretch_s: float = MIN_STRETCH_S
    ) -> None:
        self._read, self._samples_per_step, self._min_stretch_s = read, samples_per_step, min_stretch_s
        self._began: _Moment | None = None
        self._joules = 0.0
        self._num_steps = 0

    def begin(self, num_steps: int) -> None:
        """Begin a stretch after this many steps."""
        joules = self._read()
        self._began = None if joules is None else _Moment(time.perf_counter(), joules, num_steps)

    def end(self, num_steps: int) -> None:
        """End the stretch after this many steps; does nothing without `begin`."""
        began, self._began = self._began, None
        if began is None or time.perf_counter() - began.seconds < self._min_stretch_s:
            return
        joules = self._read()
        if joules is not None:
            self._joules += joules - began.joules
            self._num_steps += num_steps - began.num_steps

    def summary(self) -> dict[str, float]:
        """The energy per sample by metric key; empty without a stretch that counts."""
        if self._num_steps == 0:
            return {}
        return {"device/energy_per_sample_j": self._joules / (self._num_steps * self._samples_per_step)}


def read_energy_j(device: torch.device) -> float | None:
    """The device's energy counter in joules; None where it has none."""
    nvml = NvmlDevice.open(device)
    if nvml is None:
        return None
    try:
        return nvml.energy_j()
    finally:
        nvml.close()


@dataclass(frozen=True, slots=True)
class _Moment:
    seconds: float
    joules: float
    num_steps: int
