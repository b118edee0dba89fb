"""What was measured on a device: how long works took there, and what that says about other works."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.speed.devices import Device
from ampsweep.speed.kernel_times import Floats, Parameters, Works, kernel_times

_APART: Final = {"kind": 1e4, "dtype": 36.0, "operator": 9.0, "is_strided": 4.0, "taps": 4.0}
"""What it adds to the squared distance of two works that they differ in this; sizes count as powers of two."""


@dataclass(frozen=True)
class MeasuredWork:
    work: OperatorWork
    us: float
    tf32: bool = False  # float32 products could use TF32


@dataclass(frozen=True)
class Calibration:
    """A device as it was measured."""

    device: Device
    measured: tuple[MeasuredWork, ...]
    call_us: float  # of the host, for an operator
    spread: float = 0.0
    """Standard deviation of the logarithm of measured over predicted step times, of other trainings."""

    def host(self, parameters: Parameters) -> Parameters:
        """Parameters with the host's time as measured."""
        return replace(parameters, forward_us=self.call_us, backward_us=self.call_us, step_us=0.0)

    def kernel_times(self, works: Sequence[OperatorWork], parameters: Parameters, *, tf32: bool) -> Floats:
        """The time of each work: what the model expects, times how near measured works compare with it. The logarithms
        of measured over expected times are interpolated by inverse distance (Shepard 1968)."""
        measured = [one for one in self.measured if one.tf32 == tf32 or one.work.dtype != "float32"]
        known = [one.work for one in measured]
        log_ratios = np.log([one.us for one in measured]) - np.log(self._expected(known, parameters, tf32=tf32))
        (asked_sizes, asked_facts), (known_sizes, known_facts) = _columns(works), _columns(known)
        distances = ((asked_sizes[:, None] - known_sizes) ** 2).sum(axis=-1)
        distances += (asked_facts[:, None] != known_facts) @ np.array([*_APART.values()])
        weights = (distances + 0.25) ** -4
        factors: Floats = np.exp(weights @ log_ratios / weights.sum(axis=1))
        return self._expected(works, parameters, tf32=tf32) * factors

    def _expected(self, works: Sequence[OperatorWork], parameters: Parameters, *, tf32: bool) -> Floats:
        """What the model says; for a device that it does not know, a start: 1 TFLOP/s, 100 GB/s, 5 us for a kernel."""
        if self.device.driver_names:
            return kernel_times(Works(works), self.device, parameters, tf32=tf32)
        return np.array([max(work.flops / 1e6, work.num_bytes / 1e5) + 5.0 * work.num_kernels for work in works])


def _columns(works: Sequence[OperatorWork]) -> tuple[Floats, np.ndarray[Any, Any]]:
    """The logarithms of sizes, and other facts as numbers."""
    sizes = [work.sizes or (max(work.num_bytes, 1), 1, 1, 1) for work in works]
    return np.log2(sizes), np.array([[hash(getattr(work, name)) for name in _APART] for work in works])
