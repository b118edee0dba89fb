"""The time of a training step on a device, from the work of its operators."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final, Literal, get_args

import numpy as np

from ampsweep.observe.operator_work import MatrixKind, OperatorWork
from ampsweep.speed.calibration import Calibration
from ampsweep.speed.devices import Device
from ampsweep.speed.fitted import FIT, FITTED, Class
from ampsweep.speed.fusion import fused
from ampsweep.speed.kernel_times import Floats, Integers, Parameters, Works, chip, kernel_times, least_times
from ampsweep.speed.predicted_range import PredictedRange, in_range

Bound = Literal["compute", "bandwidth", "launch", "link"]
"""What takes most of a step: matrix arithmetic, moving bytes, the host that launches kernels, or the link to others."""
_IDLE: Final = 0.02  # a GPU that waits for the host for this share of a step is bound by launching
_SMALL_US: Final = 30.0  # a kernel that is shorter does not fill the device
_COMPUTE: Final = get_args(MatrixKind)


@dataclass(frozen=True)
class StepTime:
    """The predicted time of a step, in milliseconds."""

    step_ms: PredictedRange
    least_ms: float | None  # of its kernels one after another, at the device's peak rates; None if they are unknown
    bound: Bound
    spread: float  # standard deviation of the logarithm of measured over predicted time
    is_calibrated: bool  # by measurements of the device
    is_extrapolated: bool  # nothing was measured on this kind of chip


class StepWork:
    """The work of a step, ready to be timed on many devices."""

    def __init__(self, works: Sequence[OperatorWork], *, compiled: bool = False) -> None:
        """`compiled`: the training's own operators are compiled; the works are those of the eager step."""
        works = [*fused(works)] if compiled else works
        places: dict[OperatorWork, int] = {}
        self.order = np.array([places.setdefault(work, len(places)) for work in works])
        self.unique = tuple(places)
        self.columns = Works(self.unique)
        self.waits = np.flatnonzero([work.kind == "wait" for work in works])  # places in the order
        self._compiled = compiled
        calls = np.array([work.num_calls * (work.kind != "none") for work in self.unique])[self.order]
        phases = np.array([work.phase for work in self.unique])[self.order]
        self._calls = {phase: np.where(phases == phase, calls, 0) for phase in ("forward", "backward", "update")}

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
        kernels = self.kernels_us(device, tf32=tf32, parameters=parameters, calibration=calibration)
        launching = self.launching(parameters if calibration is None else calibration.host(parameters))
        is_host = device.architecture == "cpu"  # which runs an operator before it goes on to the next
        step_us = elapsed_us(kernels, launching, np.arange(len(kernels)) if is_host else self.waits)
        exposed_us = max(0.0, self.exchange_us(device, num_ranks) - self._sum(kernels, "phase", "backward"))
        is_extrapolated = calibration is None and chip(device) not in FIT.chips
        spread = self._spread(kernels, step_us, is_extrapolated)
        if calibration is not None and not self._compiled:  # it was judged by eager steps
            spread = calibration.spread
        bound: Bound = "compute" if 2 * self._sum(kernels, "kind", *_COMPUTE) > kernels.sum() else "bandwidth"
        if exposed_us > step_us / 2:
            bound = "link"
        elif step_us - kernels.sum() > (0.5 if is_host else _IDLE) * step_us:
            bound = "launch"
        least_us = least_times(self.columns, device, parameters, tf32=tf32)[self.order] if device.driver_names else None
        least_ms = None if least_us is None else float(least_us.sum()) / 1e3
        step_ms = in_range((step_us + exposed_us) / 1e3, spread)
        if least_ms is not None:
            step_ms = replace(step_ms, low=max(step_ms.low, min(least_ms, step_ms.expected)))
        return StepTime(
            step_ms=step_ms,
            least_ms=least_ms,
            bound=bound,
            spread=spread,
            is_calibrated=calibration is not None,
            is_extrapolated=is_extrapolated,
        )

    def _sum(self, kernels: Floats, name: str, *values: str) -> float:
        """The time of the kernels whose work has one of the values."""
        chosen = np.array([getattr(work, name) in values for work in self.unique])
        return float(kernels[chosen[self.order]].sum())

    def kernels_us(
        self, device: Device, *, tf32: bool, parameters: Parameters = FITTED, calibration: Calibration | None = None
    ) -> Floats:
        """The time on the device of each work, in order, in microseconds; see `on`."""
        if calibration is None:
            of_unique = kernel_times(self.columns, device, parameters, tf32=tf32)
        else:
            of_unique = calibration.kernel_times(self.unique, parameters, tf32=tf32)
        times: Floats = of_unique[self.order]
        return times

    def launching(self, parameters: Parameters) -> Floats:
        """The host's time for each work in order, in microseconds; that of the step as a whole is in the first."""
        each = {"forward": parameters.forward_us, "backward": parameters.backward_us}
        if self._compiled:
            each = dict.fromkeys(each, parameters.compiled_us)
        each["update"] = parameters.backward_us
        times: Floats = sum((each[phase] * calls for phase, calls in self._calls.items()), np.zeros(len(self.order)))
        times[0] += parameters.step_us
        return times

    def shares(self, kernels: Floats, step_us: float) -> dict[Class, float]:
        """The shares of the classes of work in a step, whose errors differ; `kernels`: times in order."""
        classes = np.array([_class_of(work) for work in self.unique], dtype=object)[self.order]
        classes[kernels < _SMALL_US] = "small"
        shares: dict[Class, float] = {name: kernels[classes == name].sum() / step_us for name in FIT.spreads}
        shares["launching"] = max(0.0, 1 - kernels.sum() / step_us)
        return shares

    def _spread(self, kernels: Floats, step_us: float, is_extrapolated: bool) -> float:
        shares = self.shares(kernels, step_us)
        shares["step"], shares["unknown chip"] = 1.0, float(is_extrapolated)
        return sqrt(sum((share * FIT.spreads[name]) ** 2 for name, share in shares.items()))

    def exchange_us(self, device: Device, num_ranks: int) -> float:
        """The time of what ranks exchange by rings: (n - 1) / n of a whole tensor's bytes over the link to gather or
        scatter it, and both for an all-reduce."""
        moved = 0
        for work in (self.unique[place] for place in self.order if self.unique[place].kind == "exchange"):
            # In-place operators read what they write, too.
            whole = max(work.written_bytes, work.read_bytes - work.written_bytes)
            moved += whole * (2 if "allreduce" in work.operator.replace("_", "") else 1)
        return (num_ranks - 1) / num_ranks * moved / (1e3 * device.link_gb_per_sec)


def _class_of(work: OperatorWork) -> Class:
    if work.kind == "convolution":
        assert work.sizes is not None
        return "grouped convolution" if work.sizes[0] > 1 else "convolution"
    if work.kind in ("attention", "recurrent") or str(work.dtype).startswith("float8"):
        return "not measured"
    return "product" if work.kind == "product" else "moving"


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
    launched -= np.repeat(launched[begins] - launching[begins], lengths)  # since the last wait
    # A stretch ends when the kernels from some launch on have run without a pause: the latest such time counts.
    ends = np.repeat(done[begins + lengths - 1], lengths)
    return float(np.maximum.reduceat(launched + (ends - done + kernels), begins).sum())
