"""Operators that are slower in half precision than in float32, or gain nothing from it, and needless casts."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final

from ampsweep.doctor.hot_spots import HotSpot, hot_spots
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, Baseline, MeasuredSteps, OperatorFinding, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, by_origin, total_ms
from ampsweep.numeric_formats import dtype_name

_MIN_LOSS_PCT: Final = 10.0
_MIN_SLOWER_RATIO: Final = 1.25  # least slowdown against float32 that counts as slower
_LITTLE_GAIN: Final = 1.2  # a speedup below this is what people complain of
_MIN_SLOWER_PCT: Final = 30.0  # least share of a step reported even if the step as a whole is faster
_MIN_FIXED_PCT: Final = 35.0  # least reported share of a step
_MIN_OPTIMIZER_PCT: Final = 40.0
_MIN_CASTS_PCT: Final = 6.0  # least reported share of a step; autocast needs some casts
_SHRUNK: Final = 0.8  # an operator that takes less than this of its time in float32 has gained from precision
_SLOW_RATIO: Final = 1.5  # of an operator's time over what its work takes: below, it is no slow operator
_RECURRENT: Final = ("rnn", "lstm", "gru")  # recurrent layers, some of which have no count of FLOPs


class SlowerOperators(OperatorFinding):
    template = "{operator}{inside}{at} is slower in {dtype} than in float32"
    seen = ("{num_calls} calls take {own_ms} of a step of {step_ms} on this device, in float32 {float32_ms}",)
    remedy = "cast the inputs of this line to float32, with autocast off around it if there is any"
    float32_ms: float
    dtype: str


class FixedOperators(OperatorFinding):
    template = "{operator}{inside}{at} takes much of the step, and gains nothing"
    seen = (
        "it and others there take {own_ms} of a step of {step_ms}, as in float32 (results: {dtypes})",
        "the step as a whole runs at {speedup}x the speed of float32",
    )
    remedy = "replace it by a cheaper operator, or by matrix products, which are faster in half precision"
    dtypes: list[str]
    speedup: float

    @property
    def advice(self) -> str | None:
        if self.expected_ms and self.own_ms < _SLOW_RATIO * self.expected_ms:
            return "do without it, or have trainer.compile=true fuse it: it is as fast as this device moves its bytes"
        return super().advice


class ActivationCasts(SpeedFinding):
    template = "Activations{inside}{at} are cast to float32 and back"
    seen = ("they and the casts of their gradients take {ms} of a step of {step_ms} and {bytes_pct} of its bytes",)
    remedy = "remove the casts, or keep everything between them in the same dtype"
    ms: float
    bytes_pct: float  # bytes that they move over those of all operators


class OptimizerBound(OperatorFinding):
    template = "The optimizer takes most of the step"
    seen = ("{num_calls} operators after backward take {own_ms} of a step of {step_ms}, in the parameters' dtype",)
    remedy = "train in larger batches, or accumulate gradients over several, so that it steps less often"
    remedy_by_overrides = "use the optimizer's fused kernel"


class SlowerThanFloat32(SpeedFinding):
    template = "The step takes longer than in float32"
    seen = (
        "{step_ms} against {float32_ms}, taken in turn: {speedup}x the speed",
        "it has {num_operators} operators, in float32 {num_float32_operators}, and casts take {casts_ms}",
    )
    remedy = "train in float32, or give each operator more work"
    float32_ms: float
    speedup: float
    casts_ms: float
    num_operators: int
    num_float32_operators: int


def slower_operators(measured: MeasuredSteps, baseline: Baseline) -> Iterator[SlowerOperators]:
    former = by_origin(baseline.step.calls)
    costs = []
    for origin, calls in by_origin(measured.step.calls).items():
        same = former.get(origin, [])
        own_ms, former_ms = total_ms(calls), total_ms(same)
        is_comparable = len(same) == len(calls) and any(call.is_half for call in calls)
        if is_comparable and own_ms > _MIN_SLOWER_RATIO * former_ms:
            costs += [(call, (own_ms - former_ms) * (call.ms / own_ms)) for call in calls]
    least_pct = MIN_COST_PCT if baseline.speedup.median < _LITTLE_GAIN else _MIN_SLOWER_PCT
    for spot in hot_spots(costs):
        if measured.share_pct(spot.cost) >= least_pct:
            float32_ms, dtype = total_ms(spot.calls) - spot.cost, measured.training.precision.dtype
            yield measured.finding(SlowerOperators, spot, dtype=dtype, float32_ms=float32_ms)


def fixed_operators(measured: MeasuredSteps, baseline: Baseline) -> Iterator[FixedOperators]:
    former = by_origin(baseline.step.of_phases("forward", "backward"))
    fixed = []
    for origin, calls in by_origin(measured.step.of_phases("forward", "backward")).items():
        has_products = any(call.flops or any(name in call.operator for name in _RECURRENT) for call in calls)
        if not has_products and total_ms(calls) >= _SHRUNK * total_ms(former.get(origin, [])) > 0:
            fixed += [(call, call.ms) for call in calls]
    for spot in hot_spots(fixed):
        if measured.share_pct(spot.cost) >= _MIN_FIXED_PCT:
            dtypes = sorted({dtype_name(dtype) for call in spot.calls for dtype in call.outputs})
            speedup = baseline.speedup.median
            yield measured.finding(FixedOperators, spot, dtypes=dtypes, speedup=speedup)


def optimizer(measured: MeasuredSteps) -> Iterator[OptimizerBound]:
    update = measured.step.of_phases("update")
    spot, config = HotSpot.of((call, call.ms) for call in update), measured.examined.config.optimizer
    measured.examined.facts["speed/optimizer_pct"] = measured.share_pct(spot.cost)
    if measured.share_pct(spot.cost) >= _MIN_OPTIMIZER_PCT:
        is_split = len(update) > 2 * sum(1 for _ in measured.training.model.parameters())
        overrides = ["optimizer.fused=true"] if is_split and config.get("fused") is False else []
        yield measured.finding(OptimizerBound, spot, overrides)


def slower_altogether(measured: MeasuredSteps, baseline: Baseline) -> Iterator[SlowerThanFloat32]:
    if 100 * (1 - baseline.speedup.high) >= _MIN_LOSS_PCT:
        yield measured.finding(
            SlowerThanFloat32,
            None,
            ["precision=fp32"],
            cost_pct=100 * (1 - baseline.speedup.median),
            step_ms=median(measured.times),
            float32_ms=median(baseline.times),
            speedup=baseline.speedup.median,
            casts_ms=total_ms(call for call in measured.step.calls if call.is_cast),
            num_operators=len(measured.step.calls),
            num_float32_operators=len(baseline.step.calls),
        )


def casts(measured: MeasuredSteps) -> Iterator[ActivationCasts]:
    all_casts = [call for call in measured.step.of_phases("forward", "backward") if call.is_cast]
    measured.examined.facts["speed/casts_pct"] = measured.share_pct(total_ms(all_casts))
    measured.examined.facts["speed/casts_bytes_pct"] = _bytes_pct(all_casts, measured.step)
    times = _with_backward(measured.step.calls)
    by_index = {call.index: call for call in times}
    costs: dict[TimedCall, float] = defaultdict(float)
    for call, ms in times.items():
        up = by_index.get(call.cast_up) if call.cast_up is not None else None
        if up is not None and not up.is_of_parameter:
            costs[up] += ms
    for spot in hot_spots((up, times[up] + ms) for up, ms in costs.items()):
        if measured.share_pct(spot.cost) >= _MIN_CASTS_PCT:
            bytes_pct = _bytes_pct(spot.calls, measured.step)
            yield measured.finding(ActivationCasts, spot, ms=spot.cost, bytes_pct=bytes_pct)


def _with_backward(calls: Iterable[TimedCall]) -> dict[TimedCall, float]:
    forward: dict[int, TimedCall] = {}
    times: dict[TimedCall, float] = {}
    for call in calls:
        if call.is_cast and call.phase == "forward" and {call.inputs[0].itemsize, call.outputs[0].itemsize} == {2, 4}:
            forward[call.index], times[call] = call, call.ms
        elif call.is_cast and call.forward is not None and call.forward.index in forward:
            times[forward[call.forward.index]] += call.ms
    return times


def _bytes_pct(some: Iterable[TimedCall], step: TimedStep) -> float:
    return 100 * sum(call.num_bytes for call in some) / max(sum(call.num_bytes for call in step.calls), 1)
