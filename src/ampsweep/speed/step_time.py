"""The time of a training step on a device, from the work of its operators."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final, Literal

import numpy as np

from ampsweep.observe.operator_work import Kind, OperatorWork
from ampsweep.speed.calibration import Calibration
from ampsweep.speed.devices import Device
from ampsweep.speed.fitted import EXTRAPOLATED_SPREAD, FITTED, FITTED_ARCHITECTURES, SPEEDUP_SPREAD, STEP_SPREAD
from ampsweep.speed.kernel_times import Floats, Integers, Parameters, Works, kernel_times

Bound = Literal["compute", "bandwidth", "launch", "link"]
"""What takes most of a step: matrix arithmetic, moving bytes, the host that launches kernels, or the link to others."""
NINE_OF_TEN: Final = 1.645  # standard deviations of a normal distribution on either side
_HOST_US: Final = {"forward": "forward_us", "backward": "backward_us", "update": "backward_us"}
_COMPUTE: Final = ("product", "convolution", "attention", "recurrent")


@dataclass(frozen=True)
class PredictedRange:
    """A prediction, and the range in which nine of ten measurements lie."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class StepTime:
    """The predicted time of a step, in milliseconds."""

    step_ms: PredictedRange
    bound: Bound
    kernels_ms: float  # of the device
    launching_ms: float  # of the host
    exchange_ms: float  # over the link; it may overlap with kernels
    by_kind_ms: Mapping[Kind, float]
    is_extrapolated: bool  # beyond the devices or sizes that were fitted


class StepWork:
    """The work of a step, ready to be timed on many devices."""

    def __init__(self, works: Sequence[OperatorWork]) -> None:
        places: dict[OperatorWork, int] = {}
        self.order = np.array([places.setdefault(work, len(places)) for work in works])
        self.unique = tuple(places)
        self.columns = Works(self.unique)
        self.waits = np.flatnonzero([work.kind == "wait" for work in works])
        """Places in the order where the host waits for the device."""

    def on(
        self,
        device: Device,
        *,
        tf32: bool = False,
        num_ranks: int = 1,
        parameters: Parameters = FITTED,
        calibration: Calibration | None = None,
    ) -> StepTime:
        """The time of the step; `tf32`: float32 products may use TF32. `calibration`: of this device."""
        waits = self.waits
        if calibration is None:
            kernels = kernel_times(self.columns, device, parameters, tf32=tf32)[self.order]
        else:
            kernels = calibration.kernel_times(self.unique, parameters, tf32=tf32)[self.order]
            parameters = calibration.host(parameters)
            if device.architecture == "cpu":  # the host is the device
                waits = np.arange(len(self.order))
        launching = self._launching(parameters)
        exchange_us = self._exchange_us(device, num_ranks)
        step_us = max(elapsed_us(kernels, launching, waits), exchange_us)
        by_kind: dict[Kind, float] = defaultdict(float)
        for place, time in zip(self.order, kernels, strict=True):
            by_kind[self.unique[place].kind] += time / 1e3
        is_extrapolated = calibration is None and device.architecture not in FITTED_ARCHITECTURES
        spread = EXTRAPOLATED_SPREAD if is_extrapolated else STEP_SPREAD
        computing = sum(by_kind[kind] for kind in _COMPUTE)
        bound: Bound = "compute" if 2e3 * computing > kernels.sum() else "bandwidth"
        if exchange_us == step_us:
            bound = "link"
        elif step_us > 1.02 * kernels.sum():
            bound = "launch"
        return StepTime(
            step_ms=_range(step_us / 1e3, spread if calibration is None else calibration.spread),
            bound=bound,
            kernels_ms=kernels.sum() / 1e3,
            launching_ms=launching.sum() / 1e3,
            exchange_ms=exchange_us / 1e3,
            by_kind_ms={kind: time for kind, time in by_kind.items() if time},
            is_extrapolated=is_extrapolated,
        )

    def _launching(self, parameters: Parameters) -> Floats:
        """The host's time for each work in order, in microseconds; that of the step as a whole is in the first."""
        each = {phase: getattr(parameters, name) for phase, name in _HOST_US.items()}
        of_unique = np.array([each[work.phase] * work.num_calls * (work.kind != "none") for work in self.unique])
        times: Floats = of_unique[self.order]
        times[0] += parameters.step_us
        return times

    def _exchange_us(self, device: Device, num_ranks: int) -> float:
        """The time of a ring's all-reduce of what the ranks exchange: 2 (n - 1) / n of the bytes over the link."""
        exchanged = sum(self.unique[place].read_bytes for place in self.order if self.unique[place].kind == "exchange")
        exchanged_us: float = 2 * (num_ranks - 1) / num_ranks * exchanged / (1e3 * device.link_gb_per_sec)
        return exchanged_us


def elapsed_us(kernels: Floats, launching: Floats, waits: Integers) -> float:
    """The time of a step, one of many like it: the device works through what the host launches, which waits for it at
    `waits`. `kernels` and `launching` are times of the device and the host for each work in order."""
    if not len(waits):
        return float(max(kernels.sum(), launching.sum()))
    start = waits[-1] + 1  # steps are a cycle
    kernels, launching = np.roll(kernels, -start), np.roll(launching, -start)
    begins = np.append(0, np.sort((waits - start) % len(kernels))[:-1] + 1)
    lengths = np.diff(np.append(begins, len(kernels)))
    launched, done = np.cumsum(launching), np.cumsum(kernels)
    launched_before, _done_before = (
        np.repeat(total[begins] - own[begins], lengths) for total, own in ((launched, launching), (done, kernels))
    )
    # A kernel ends when those from some launch on have run without a pause: the latest such time counts.
    ends = np.repeat(done[begins + lengths - 1], lengths)
    paths = (launched - launched_before) + (ends - done + kernels)
    return float(np.maximum.reduceat(paths, begins).sum())


def speedup(baseline: StepTime, other: StepTime) -> PredictedRange:
    """How many times as fast `other` is; the errors of two predictions for one device are mostly the same."""
    spread = EXTRAPOLATED_SPREAD if other.is_extrapolated else SPEEDUP_SPREAD
    return _range(baseline.step_ms.expected / other.step_ms.expected, spread)


def spread_factor(spread: float) -> float:
    """The factor within which nine of ten measurements lie, by the standard deviation of their logarithms."""
    return exp(NINE_OF_TEN * spread)


def _range(expected: float, spread: float) -> PredictedRange:
    factor = spread_factor(spread)
    return PredictedRange(expected, expected / factor, expected * factor)
