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
class ArmOnGpu:
    """The speed of an arm on a GPU, or on as many as it has ranks. Speeds and costs are those of tokens, or of samples
    where the data is not tokens."""

    gpu: Device
    prediction: ArmPrediction
    work: TracedWork
    time: StepTime
    per_sec: PredictedRange
    largest_per_sec: PredictedRange | None  # at the largest batch that fits, if any does
    speedups: Mapping[str, PredictedRange]  # by baseline: fp32, tf32
    cost_per_million: PredictedRange | None  # None without a price
    cost_of_training: PredictedRange | None
    reading_ms: float  # in which this machine's CPU reads the batches of a step with the configured workers

    @property
    def arm(self) -> str:
        return self.prediction.arm

    @property
    def unit(self) -> str:
        return "tokens" if self.work.tokens_per_sample else "samples"

    @property
    def step_ms(self) -> float:
        return self.time.step_ms.expected

    @property
    def bound(self) -> str:
        """What bounds the step: see `StepTime`; `data` if this machine's CPU would read its batches more slowly."""
        return "data" if self.reading_ms > self.step_ms else self.time.bound


@dataclass(frozen=True)
class GpuSpeeds:
    gpu: Device
    price: float | None  # of an hour
    arms: tuple[ArmOnGpu, ...]  # in the order of reports
    unsupported: Mapping[str, str]  # the reason, by arm

    @property
    def best(self) -> ArmOnGpu | None:
        """The fastest arm that fits and has float32 weights, or, if none has, of all that fit. Of those as fast it is
        the first, so that autocast or a scaler must gain something."""
        fitting = [arm for arm in self.arms if arm.prediction.fits]
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
    times = {arm.arm: time_on(gpu, arm.config, work.step, arm.world_size) for arm, work in works}
    arms = tuple(_speed(arm, work, gpu, times, price) for arm, work in works)
    return GpuSpeeds(gpu, price, arms, of.unsupported)


def _speed(
    arm: ArmPrediction, work: TracedWork, gpu: Device, times: Mapping[str, StepTime], price: float | None
) -> ArmOnGpu:
    time, data, largest = times[arm.arm], arm.config.data, None
    per_item = work.batches_per_step * (work.tokens_per_sample or 1)
    per_step, step_ms = per_item * data["batch_size"], time.step_ms.expected
    if work.at_largest is not None and arm.largest is not None:
        at_largest = time_on(gpu, arm.config, work.at_largest, arm.world_size)
        largest = at_largest.step_ms.of(1e3 * per_item * arm.largest.batch_size / at_largest.step_ms.expected)
    cost = None if price is None else price * arm.world_size * step_ms / _MS_PER_HOUR
    num_workers = data.get("num_workers")
    return ArmOnGpu(
        gpu,
        arm,
        work,
        time,
        per_sec=time.step_ms.of(1e3 * per_step / step_ms),
        largest_per_sec=largest,
        speedups={
            mode: speedup(times[mode].step_ms, time.step_ms, FIT.correlation)
            for mode in ("fp32", "tf32")
            if mode in times and mode != arm.arm
        },
        cost_per_million=None if cost is None else time.step_ms.of(1e6 * cost / per_step),
        cost_of_training=None if cost is None else time.step_ms.of(cost * work.num_steps),
        reading_ms=work.reading_ms / (max(1, num_workers) if isinstance(num_workers, int) else 1),
    )


def fastest(gpus: Sequence[GpuSpeeds]) -> ArmOnGpu | None:
    return min((best for gpu in gpus if (best := gpu.best)), key=lambda arm: arm.step_ms, default=None)


def cheapest(gpus: Sequence[GpuSpeeds]) -> ArmOnGpu | None:
    costs = {best.cost_of_training.expected: best for gpu in gpus if (best := gpu.best) and best.cost_of_training}
    return costs[min(costs)] if costs else None
