"""A workload's speed on several GPUs in several modes: the best mode of each, the fastest and the cheapest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.config.errors import UserError
from ampsweep.config.modes import report_order
from ampsweep.predict.run_prediction import time_on
from ampsweep.predict.workload_prediction import ArmPrediction, TracedWork, WorkloadPrediction
from ampsweep.speed.devices import Device
from ampsweep.speed.fitted import FIT
from ampsweep.speed.predicted_range import PredictedRange, speedup
from ampsweep.speed.step_time import StepTime

_ALIKE: Final = 1.03
"""Two modes of a GPU whose predicted times differ by less than this factor are equally fast."""
_MS_PER_HOUR: Final = 3.6e6


@dataclass(frozen=True)
class ArmSpeed:
    """The speed of an arm on a GPU, or on as many as it has ranks."""

    gpu: Device
    price: float | None  # of an hour of the GPU
    prediction: ArmPrediction
    work: TracedWork
    time: StepTime
    per_sec: PredictedRange  # tokens or samples: see `TracedWork`
    largest_per_sec: PredictedRange | None  # at the largest batch, if any fits
    speedups: Mapping[str, PredictedRange]  # over fp32 and tf32, if they are predicted, too

    @property
    def arm(self) -> str:
        return self.prediction.arm

    @property
    def step_ms(self) -> float:
        return self.time.step_ms.expected

    @property
    def fits(self) -> bool:
        return bool(self.prediction.config.data["batch_size"] <= self.work.largest)

    def cost(self, time_ms: float) -> PredictedRange | None:
        """Of so much time on all GPUs; None without a price."""
        hours = time_ms * self.prediction.world_size / _MS_PER_HOUR
        return None if self.price is None else self.time.step_ms.of(self.price * hours)

    @property
    def cost_per_million(self) -> PredictedRange | None:
        return self.cost(1e9 / self.per_sec.expected)

    @property
    def reading_ms(self) -> float:
        """The time in which this machine's CPU reads the batches of a step with the configured workers."""
        num_workers = self.prediction.config.data.get("num_workers")
        return self.work.reading_ms / max(1, num_workers if isinstance(num_workers, int) else 0)

    @property
    def bound(self) -> str:
        """What bounds the step: see `StepTime`; `data` if this machine's CPU would read its batches more slowly."""
        return "data" if self.reading_ms > self.step_ms else self.time.bound


@dataclass(frozen=True)
class GpuSpeeds:
    gpu: Device
    arms: tuple[ArmSpeed, ...]  # in the order of reports
    unsupported: Mapping[str, str]  # the reason, by arm

    @property
    def best(self) -> ArmSpeed | None:
        """The fastest arm that fits and has float32 weights, or, if none has, of all that fit. Of those as fast it is
        the first, so that autocast or a scaler must gain something."""
        fitting = [arm for arm in self.arms if arm.fits]
        safe = [arm for arm in fitting if arm.prediction.config.precision.parameters == "float32"] or fitting
        return next((arm for arm in safe if arm.step_ms < _ALIKE * min(other.step_ms for other in safe)), None)


def on_gpus(predictions: Sequence[WorkloadPrediction], prices: Mapping[Device, float | None]) -> list[GpuSpeeds]:
    """The speeds of a workload by its predictions for GPUs; UserError if no mode is possible on any."""
    found = [_on_gpu(of, of.target.gpu, prices.get(of.target.gpu)) for of in predictions if of.target.gpu is not None]
    if not any(gpu.arms for gpu in found):
        raise UserError(next(reason for gpu in found for reason in gpu.unsupported.values()))
    return found


def _on_gpu(of: WorkloadPrediction, gpu: Device, price: float | None) -> GpuSpeeds:
    works = [(arm, arm.work) for arm in sorted(of.arms, key=lambda arm: report_order(arm.arm)) if arm.work is not None]
    times = {arm.arm: time_on(gpu, arm.config, work.step) for arm, work in works}
    arms = []
    for arm, work in works:
        time, largest = times[arm.arm], None
        if work.at_largest is not None:
            largest = work.per_sec(time_on(gpu, arm.config, work.at_largest).step_ms, work.largest)
        per_sec = work.per_sec(time.step_ms, arm.config.data["batch_size"])
        others = {mode: times[mode].step_ms for mode in times if mode in ("fp32", "tf32") and mode != arm.arm}
        over = {mode: speedup(other, time.step_ms, FIT.correlation) for mode, other in others.items()}
        arms.append(ArmSpeed(gpu, price, arm, work, time, per_sec, largest, over))
    return GpuSpeeds(gpu, tuple(arms), of.unsupported)


def fastest(gpus: Sequence[GpuSpeeds]) -> ArmSpeed | None:
    return min((best for gpu in gpus if (best := gpu.best)), key=lambda arm: arm.step_ms, default=None)


def cheapest(gpus: Sequence[GpuSpeeds]) -> ArmSpeed | None:
    costs = {cost.expected: best for gpu in gpus if (best := gpu.best) and (cost := best.cost(best.step_ms))}
    return costs[min(costs)] if costs else None
