"""A workload's speed on several GPUs in several modes: the best mode of each, the fastest and the cheapest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.config.modes import report_order
from ampsweep.predict.run_prediction import time_on
from ampsweep.predict.traced_work import TracedWork
from ampsweep.predict.workload_prediction import ArmPrediction, WorkloadPrediction
from ampsweep.speed.devices import Device
from ampsweep.speed.step_time import PredictedRange, StepTime, speedup

_ALIKE: Final = 1.03
"""Two modes of a GPU whose predicted times differ by less than this factor are equally fast."""
_MS_PER_HOUR: Final = 3.6e6


@dataclass(frozen=True)
class ArmOnDevice:
    """The speed of an arm on a GPU, or on as many as it has ranks."""

    gpu: Device
    prediction: ArmPrediction
    work: TracedWork
    time: StepTime
    figures: Mapping[str, PredictedRange]
    """By key: `step_ms`, `samples_per_sec` and `tokens_per_sec`, also at the `largest_` batch, `speedup_over_` fp32 and
    tf32, `cost_per_million_` samples and tokens, `cost_of_training`; without those that do not exist."""

    @property
    def arm(self) -> str:
        return self.prediction.arm

    @property
    def step_ms(self) -> float:
        return self.time.step_ms.expected

    @property
    def throughput(self) -> str:
        """The key of its throughput: in tokens, if the data has them."""
        return "tokens_per_sec" if "tokens_per_sec" in self.figures else "samples_per_sec"

    @property
    def largest_batch(self) -> int | None:
        return None if self.prediction.largest is None else self.prediction.largest.batch_size

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
    price: float | None  # of an hour
    arms: tuple[ArmOnDevice, ...]  # in the order of reports
    unsupported: Mapping[str, str]  # the reason, by arm

    @property
    def fastest(self) -> ArmOnDevice | None:
        """The fastest arm that fits."""
        return min((arm for arm in self.arms if arm.work.fits), key=lambda arm: arm.step_ms, default=None)

    @property
    def alike(self) -> list[ArmOnDevice]:
        """The arms that fit and are as fast as the fastest with float32 weights, or, if none has such, of all; the best
        is the first, so that autocast or a scaler must gain something."""
        fitting = [arm for arm in self.arms if arm.work.fits]
        safe = [arm for arm in fitting if arm.prediction.config.precision.parameters == "float32"] or fitting
        least = min((arm.step_ms for arm in safe), default=0.0)
        return [arm for arm in safe if arm.step_ms < _ALIKE * least]

    @property
    def best(self) -> ArmOnDevice | None:
        return next(iter(self.alike), None)


def on_gpus(predictions: Sequence[WorkloadPrediction], prices: Mapping[Device, float | None]) -> list[GpuSpeeds]:
    """The speeds of a workload by its predictions for GPUs."""
    return [_on_gpu(of, of.target.gpu, prices.get(of.target.gpu)) for of in predictions if of.target.gpu is not None]


def _on_gpu(of: WorkloadPrediction, gpu: Device, price: float | None) -> GpuSpeeds:
    works = [(arm, arm.work) for arm in sorted(of.arms, key=lambda arm: report_order(arm.arm)) if arm.work is not None]
    times = {arm.arm: time_on(gpu, arm.config, work.step, arm.world_size) for arm, work in works}
    arms = []
    for arm, work in works:
        figures = _figures(arm, work, times[arm.arm], price)
        for mode in {"fp32", "tf32"} & times.keys() - {arm.arm}:
            figures[f"speedup_over_{mode}"] = speedup(times[mode], times[arm.arm])
        if work.at_largest is not None and arm.largest is not None:
            largest = time_on(gpu, arm.config, work.at_largest, arm.world_size)
            found = _throughput(work, arm.largest.batch_size, largest.step_ms)
            figures |= {f"largest_{key}": value for key, value in found.items()}
        arms.append(ArmOnDevice(gpu, arm, work, times[arm.arm], figures))
    return GpuSpeeds(gpu, price, tuple(arms), of.unsupported)


def _figures(arm: ArmPrediction, work: TracedWork, time: StepTime, price: float | None) -> dict[str, PredictedRange]:
    batch_size, step = arm.config.data["batch_size"], time.step_ms
    figures = {"step_ms": step} | _throughput(work, batch_size, step)
    if price is not None:
        a_step, samples = price * arm.world_size / _MS_PER_HOUR, batch_size * work.batches_per_step
        figures["cost_per_million_samples"] = _times(step, a_step * 1e6 / samples)
        if work.tokens_per_sample is not None:
            figures["cost_per_million_tokens"] = _times(step, a_step * 1e6 / samples / work.tokens_per_sample)
        figures["cost_of_training"] = _times(step, a_step * work.num_steps)
    return figures


def _throughput(work: TracedWork, batch_size: int, step_ms: PredictedRange) -> dict[str, PredictedRange]:
    samples = 1e3 * batch_size * work.batches_per_step
    figures = {
        "samples_per_sec": PredictedRange(samples / step_ms.expected, samples / step_ms.high, samples / step_ms.low)
    }
    if work.tokens_per_sample is not None:
        figures["tokens_per_sec"] = _times(figures["samples_per_sec"], work.tokens_per_sample)
    return figures


def _times(of: PredictedRange, factor: float) -> PredictedRange:
    return PredictedRange(factor * of.expected, factor * of.low, factor * of.high)


def fastest(gpus: Sequence[GpuSpeeds]) -> ArmOnDevice | None:
    return min((best for gpu in gpus if (best := gpu.best)), key=lambda arm: arm.step_ms, default=None)


def cheapest(gpus: Sequence[GpuSpeeds]) -> ArmOnDevice | None:
    priced = [best for gpu in gpus if (best := gpu.best) and "cost_of_training" in best.figures]
    return min(priced, key=lambda arm: arm.figures["cost_of_training"].expected, default=None)
