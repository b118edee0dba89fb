"""What was measured on a device: how long works took there, and what that says about other works."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.speed.devices import Device
from ampsweep.speed.kernel_times import Floats, Parameters, Works, kernel_times

LARGE_US: Final = 50.0
"""Works that take longer show the device's rates."""
_APART: Final = {"operator": 9.0, "dtype": 36.0, "is_strided": 4.0, "taps": 4.0}
"""What it adds to the squared distance of two works that they differ in this; sizes count as powers of two."""


@dataclass(frozen=True)
class MeasuredWork:
    work: OperatorWork
    us: float
    tf32: bool = False  # float32 products could use TF32


@dataclass(frozen=True)
class Calibration:
    """A device as it was measured. Times are in microseconds."""

    device: Device  # a CPU's has measured peaks and bandwidth
    measured: tuple[MeasuredWork, ...]
    kernel_us: float  # the least time of an operator
    forward_us: float  # of the host, for an operator in forward
    backward_us: float  # of the host, for an operator in backward and in the update
    step_us: float  # of the host, for a step
    spread: float = 0.0
    """Standard deviation of the logarithm of measured over predicted step times, of other trainings."""

    def tflops_per_sec(self) -> dict[str, float]:
        """The highest rate of matrix arithmetic by dtype, or `tf32`."""
        rates: dict[str, float] = {}
        for one in self.measured:
            if one.work.flops and one.us > LARGE_US:
                name = "tf32" if one.tf32 and one.work.dtype == "float32" else str(one.work.dtype)
                rates[name] = max(rates.get(name, 0.0), one.work.flops / one.us / 1e6)
        return rates

    def gb_per_sec(self) -> float:
        """The rate at which the operator with the most bytes moves them."""
        num_bytes, us = max((one.work.num_bytes, one.us) for one in self.measured if not one.work.flops)
        return num_bytes / us / 1e3

    def host(self, parameters: Parameters) -> Parameters:
        """Parameters with the host's times as measured."""
        return replace(parameters, forward_us=self.forward_us, backward_us=self.backward_us, step_us=self.step_us)

    def without(self, works: Collection[OperatorWork]) -> "Calibration":
        return replace(self, measured=tuple(one for one in self.measured if one.work not in works))

    def kernel_times(self, works: Sequence[OperatorWork], parameters: Parameters, *, tf32: bool) -> Floats:
        """The time of each work: what the model expects, times how near measured works compare with it.

        The logarithms of measured over expected times are interpolated between works of the same kind, or between all
        if none is, by inverse distance (Shepard 1968)."""
        measured = [one for one in self.measured if one.tf32 == tf32 or one.work.dtype != "float32"]
        known = [one.work for one in measured]
        log_ratios = np.log([one.us for one in measured]) - np.log(self._expected(known, parameters, tf32=tf32))
        times = self._expected(works, parameters, tf32=tf32)
        of_known, of_asked = (np.array([work.kind for work in some]) for some in (known, works))
        for kind in {*of_asked} - {"none"}:
            near = np.flatnonzero(of_known == kind) if kind in of_known else np.arange(len(known))
            asked = np.flatnonzero(of_asked == kind)
            distances = _distances(
                [works[place] for place in asked.tolist()], [known[place] for place in near.tolist()]
            )
            weights = (distances + 0.25) ** -4
            times[asked] *= np.exp(weights @ log_ratios[near] / weights.sum(axis=1))
        return times

    def _expected(self, works: Sequence[OperatorWork], parameters: Parameters, *, tf32: bool) -> Floats:
        if self.device.architecture != "cpu":
            return kernel_times(Works(works), self.device, parameters, tf32=tf32)
        rates = [self.device.tflops_per_sec(work.dtype or "") or self.device.float32 for work in works]
        flops = np.array([work.flops for work in works]) / (1e6 * np.array(rates))
        moved = np.array([work.num_bytes for work in works])
        times = np.maximum(flops, moved / (1e3 * self.device.bandwidth_gb_per_sec)) + self.kernel_us
        return np.where([work.num_kernels > 0 for work in works], times, 0.0)


def _distances(asked: Sequence[OperatorWork], known: Sequence[OperatorWork]) -> Floats:
    """The squared distance of each of `asked` to each of `known`."""
    differences = _log_sizes(asked)[:, None] - _log_sizes(known)
    distances: Floats = (differences**2).sum(axis=-1)
    for name, apart in _APART.items():
        ours, theirs = (np.array([str(getattr(work, name)) for work in works]) for works in (asked, known))
        distances += apart * (ours[:, None] != theirs)
    return distances


def _log_sizes(works: Sequence[OperatorWork]) -> Floats:
    def sizes(work: OperatorWork) -> tuple[float, ...]:
        if work.sizes is not None:
            return (*work.sizes, 1)
        return max(work.num_elements, work.read_bytes // 4), 1, 1, 1, max(1, work.row_length) ** 0.3

    logarithms: Floats = np.log2(np.maximum([sizes(work) for work in works], 1))
    return logarithms
