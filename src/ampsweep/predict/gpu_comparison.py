"""A workload's speed on several GPUs in several modes: the best mode of each, the fastest and the cheapest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.config.modes import report_order
from ampsweep.predict.run_prediction import time_on
from ampsweep.predict.traced_work import TracedWork
from ampsweep.predict.workload_prediction import ArmPrediction, WorkloadPrediction
from ampsweep.speed.devices import Device
from ampsweep.speed.step_time import PredictedRange, StepTime, StepWork, speedup

_ALIKE: Final = 1.03
"""Two modes of a GPU whose predicted times differ by less than this factor are equally fast."""
_MILLION: Final = 1e6
_MS_PER_HOUR: Final = 3.6e6


@dataclass(frozen=True)
class StepSpeed:
    """The time of a step, and what it trains on all ranks."""

    time: StepTime
    samples: int
    tokens: int | None  # None if the data is not tokens

    @property
    def samples_per_sec(self) -> PredictedRange:
        return _per_second(self.samples, self.time.step_ms)

    @property
    def tokens_per_sec(self) -> PredictedRange | None:
        return None if self.tokens is None else _per_second(self.tokens, self.time.step_ms)


def _per_second(amount: int, step_ms: PredictedRange) -> PredictedRange:
    return PredictedRange(*(1e3 * amount / ms for ms in (step_ms.expected, step_ms.high, step_ms.low)))


@dataclass(frozen=True)
class ArmOnDevice:
    """The speed of an arm on a GPU, or on as many as it has ranks, and what it costs."""

    gpu: Device
    price: float | None  # of a GPU-hour
    prediction: ArmPrediction
    work: TracedWork
    speed: StepSpeed
    at_largest: StepSpeed | None
    over: Mapping[str, StepTime]  # the GPU's arms that speed-ups are over

    @property
    def arm(self) -> str:
        return self.prediction.arm

    @property
    def fits(self) -> bool:
        return self.work.fits

    @property
    def peak(self) -> int:
        """Bytes that the allocator reports at the peak of a step."""
        return self.prediction.memory.total_bytes

    @property
    def reading_ms(self) -> float:
        """The time in which this machine's CPU reads the batches of a step with the configured workers."""
        num_workers = self.prediction.config.data.get("num_workers")
        return self.work.reading_ms / max(1, num_workers if isinstance(num_workers, int) else 0)

    @property
    def bound(self) -> str:
        """What bounds the step: see `StepTime`; `data` if this machine's CPU would read its batches more slowly."""
        return "data" if self.reading_ms > _step_ms(self) else self.speed.time.bound

    @property
    def has_float32_weights(self) -> bool:
        return self.prediction.config.precision.parameters == "float32"

    def speedup(self, mode: str) -> PredictedRange | None:
        """How many times as fast as another mode on the same GPU; None for itself, and if that was not predicted."""
        baseline = self.over.get(mode)
        return None if baseline is None or self.arm == mode else speedup(baseline, self.speed.time)

    def cost(self, num_steps: float) -> PredictedRange | None:
        if self.price is None:
            return None
        step, per_ms = self.speed.time.step_ms, self.price * self.prediction.world_size / _MS_PER_HOUR
        return PredictedRange(*(num_steps * per_ms * ms for ms in (step.expected, step.low, step.high)))

    @property
    def cost_per_million_samples(self) -> PredictedRange | None:
        return self.cost(_MILLION / self.speed.samples)

    @property
    def cost_per_million_tokens(self) -> PredictedRange | None:
        return None if self.speed.tokens is None else self.cost(_MILLION / self.speed.tokens)

    @property
    def cost_of_training(self) -> PredictedRange | None:
        return self.cost(self.work.num_steps)


@dataclass(frozen=True)
class GpuSpeeds:
    gpu: Device
    price: float | None
    arms: tuple[ArmOnDevice, ...]
    unsupported: Mapping[str, str]  # the reason, by arm

    @property
    def best(self) -> ArmOnDevice | None:
        """The fastest arm that fits and whose weights are float32, or any if none has such; of equally fast arms the
        first in the order of reports, so that autocast or a scaler must gain something."""
        fitting = [arm for arm in self.arms if arm.fits]
        safe = [arm for arm in fitting if arm.has_float32_weights] or fitting
        quick = min(safe, key=_step_ms, default=None)
        alike = [] if quick is None else [arm for arm in safe if _step_ms(arm) < _ALIKE * _step_ms(quick)]
        return min(alike, key=lambda arm: report_order(arm.arm), default=None)

    def as_fast_as(self, best: ArmOnDevice) -> list[ArmOnDevice]:
        """The other arms that fit, have float32 weights and take about the same time."""
        near = [arm for arm in self.arms if arm.fits and arm.has_float32_weights and arm is not best]
        return [arm for arm in near if _step_ms(best) / _ALIKE < _step_ms(arm) < _ALIKE * _step_ms(best)]

    @property
    def lighter(self) -> ArmOnDevice | None:
        """The fastest arm that fits, if it gains on the best by weights in half precision."""
        best, quick = self.best, min((arm for arm in self.arms if arm.fits), key=_step_ms, default=None)
        return quick if best and quick and _step_ms(best) > _ALIKE * _step_ms(quick) else None


def on_gpus(predictions: Sequence[WorkloadPrediction], prices: Mapping[Device, float | None]) -> list[GpuSpeeds]:
    """The speeds of a workload by its predictions for GPUs."""
    return [_on_gpu(of, prices) for of in predictions]


def _on_gpu(of: WorkloadPrediction, prices: Mapping[Device, float | None]) -> GpuSpeeds:
    gpu = of.target.gpu
    assert gpu is not None, "a target without data"
    over: dict[str, StepTime] = {}
    arms = []
    for arm in sorted(of.arms, key=lambda arm: report_order(arm.arm)):
        assert arm.work is not None, "predicted for a GPU"
        speed = _speed(arm, arm.work, gpu, arm.config.data["batch_size"], arm.work.step)
        largest, at_largest = arm.largest, None
        if largest is not None and arm.work.at_largest is not None:
            at_largest = _speed(arm, arm.work, gpu, largest.batch_size, arm.work.at_largest)
        if arm.arm in ("fp32", "tf32"):
            over[arm.arm] = speed.time
        arms.append(ArmOnDevice(gpu, prices.get(gpu), arm, arm.work, speed, at_largest, over))
    return GpuSpeeds(gpu, prices.get(gpu), tuple(arms), of.unsupported)


def _speed(arm: ArmPrediction, work: TracedWork, gpu: Device, batch_size: int, step: StepWork) -> StepSpeed:
    samples = batch_size * work.batches_per_step
    tokens = None if work.tokens_per_sample is None else samples * work.tokens_per_sample
    return StepSpeed(time_on(gpu, arm.config, step, arm.world_size), samples, tokens)


def fastest(gpus: Sequence[GpuSpeeds]) -> ArmOnDevice | None:
    return min((best for gpu in gpus if (best := gpu.best)), key=_step_ms, default=None)


def cheapest(gpus: Sequence[GpuSpeeds]) -> ArmOnDevice | None:
    priced = [(cost.expected, best) for gpu in gpus if (best := gpu.best) and (cost := best.cost_per_million_samples)]
    return min(priced, key=lambda pair: pair[0])[1] if priced else None


def _step_ms(arm: ArmOnDevice) -> float:
    return arm.speed.time.step_ms.expected
