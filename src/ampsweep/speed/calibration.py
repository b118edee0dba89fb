"""What was measured on a device: how long works took there, and what that says about other works."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.speed.devices import Device
from ampsweep.speed.kernel_times import Floats, Parameters, Works, kernel_times

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

    device: Device
    measured: tuple[MeasuredWork, ...]
    rates: dict[str, float]
    """What large works reach: TFLOP/s by dtype of matrix arithmetic, or `tf32`, and GB/s of others as `moved`."""
    kernel_us: float  # the least time of an operator
    forward_us: float  # of the host, for an operator in forward
    backward_us: float  # of the host, for an operator in backward and in the update
    step_us: float  # of the host, for a step
    spread: float = 0.0
    """Standard deviation of the logarithm of measured over predicted step times, of other trainings."""

    def host(self, parameters: Parameters) -> Parameters:
        """Parameters with the host's times as measured."""
        return replace(parameters, forward_us=self.forward_us, backward_us=self.backward_us, step_us=self.step_us)

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
        """What the model says, or for a device that it does not know the rates that others reach."""
        if self.device.driver_names:
            return kernel_times(Works(works), self.device, parameters, tf32=tf32)
        tflops = np.array([self.rates.get(str(work.dtype), self.rates["float32"]) for work in works])
        flops, moved = (np.array([getattr(work, name) for work in works]) for name in ("flops", "num_bytes"))
        times = np.maximum(flops / (1e6 * tflops), moved / (1e3 * self.rates["moved"])) + self.kernel_us
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
