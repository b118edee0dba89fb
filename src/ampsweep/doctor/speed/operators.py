"""Operators that are slower in half precision than in float32, or gain nothing from it, and needless casts."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, Baseline, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, by_origin, total_ms
from ampsweep.doctor.spot import Spot, spots
from ampsweep.numeric_formats import dtype_name

_MIN_LOSS_PCT: Final = 10.0
_MIN_SLOWER_RATIO: Final = 1.25
"""Time in half precision over that in float32 from which calls count as slower."""
_LITTLE_GAIN: Final = 1.2
"""A speedup below this is what people complain of."""
_MIN_SLOWER_PCT: Final = 30.0
"""Share of a step from which what they cost is reported in any step, a faster one too."""
_MIN_FIXED_PCT: Final = 35.0
"""Share of a step from which operators that precision does not shorten are reported."""
_MIN_OPTIMIZER_PCT: Final = 40.0
_MIN_CASTS_PCT: Final = 6.0
"""Share of a step from which casts are reported; autocast needs some."""
_SHRUNK: Final = 0.8
"""An operator that takes less than this of its time in float32 has gained from precision."""
_RECURRENT: Final = ("rnn", "lstm", "gru")
"""Parts of names of fused recurrent layers: most of each is products, which have no count of FLOPs."""


class SlowerOperators(SpeedFinding):
    template = "{operator}{inside}{at} is slower in {dtype} than in float32"
    seen = (
        "on this device {num_calls} calls take {own_ms} of a step of {step_ms}; the same calls in float32 take "
        "{float32_ms}",
    )
    remedy = "cast the inputs of this line to float32, with autocast off around it if there is any"
    own_ms: float
    float32_ms: float
    dtype: str
    num_calls: int


class FixedOperators(SpeedFinding):
    template = "{operator}{inside}{at} takes much of the step, and gains nothing"
    seen = (
        "it and others there take {ms} of a step of {step_ms}, as in float32 (results: {dtypes})",
        "the step as a whole runs at {speedup}x the speed of float32",
    )
    remedy = "replace it by a cheaper operator, or by matrix products, which half precision shortens"
    ms: float
    dtypes: list[str]
    speedup: float


class ActivationCasts(SpeedFinding):
    template = "Activations{inside}{at} are cast to float32 and back"
    seen = (
        "such casts and those of their gradients take {ms} of a step of {step_ms} and move {bytes_pct} of its bytes",
    )
    remedy = "take out the casts, or keep in one dtype what lies between them"
    ms: float
    bytes_pct: float
    """Bytes that they move over those of all operators."""


class OptimizerBound(SpeedFinding):
    template = "The optimizer takes most of the step"
    seen = (
        "{num_operators} operators after backward take {ms} of a step of {step_ms}; they work on parameters and state "
        "in the dtype of the parameters",
    )
    remedy = "train in larger batches, or accumulate gradients over several, so that it steps less often"
    remedy_by_overrides = "use the optimizer's fused kernel"
    ms: float
    num_operators: int


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


def slower_operators(measured: MeasuredSteps, baseline: Baseline) -> list[SlowerOperators]:
    """Find operators that half precision makes slower on this device."""
    former = by_origin(baseline.step.calls)
    costs = []
    for origin, calls in by_origin(measured.step.calls).items():
        same = former.get(origin, [])
        own_ms, former_ms = total_ms(calls), total_ms(same)
        is_comparable = len(same) == len(calls) and any(one.is_half for one in calls)
        if is_comparable and own_ms > _MIN_SLOWER_RATIO * former_ms:
            costs += [(one, (own_ms - former_ms) * (one.ms / own_ms)) for one in calls]
    least_pct = MIN_COST_PCT if baseline.speedup.median < _LITTLE_GAIN else _MIN_SLOWER_PCT
    return [
        measured.finding(
            SlowerOperators,
            spot,
            own_ms=total_ms(spot.calls),
            float32_ms=total_ms(spot.calls) - spot.cost,
            dtype=measured.training.precision.dtype,
            num_calls=len(spot.calls),
        )
        for spot in spots(costs)
        if measured.share_pct(spot.cost) >= least_pct
    ]


def fixed_operators(measured: MeasuredSteps, baseline: Baseline) -> list[FixedOperators]:
    """Find operators other than products that take most of the step and no less time than in float32."""
    former = by_origin(baseline.step.of_phases("forward", "backward"))
    fixed = []
    for origin, calls in by_origin(measured.step.of_phases("forward", "backward")).items():
        has_products = any(one.flops or any(name in one.operator for name in _RECURRENT) for one in calls)
        if not has_products and total_ms(calls) >= _SHRUNK * total_ms(former.get(origin, [])) > 0:
            fixed += [(one, one.ms) for one in calls]
    return [
        measured.finding(
            FixedOperators,
            spot,
            ms=spot.cost,
            dtypes=sorted({dtype_name(dtype) for one in spot.calls for dtype in one.outputs}),
            speedup=baseline.speedup.median,
        )
        for spot in spots(fixed)
        if measured.share_pct(spot.cost) >= _MIN_FIXED_PCT
    ]


def optimizer(measured: MeasuredSteps) -> list[OptimizerBound]:
    """Find out whether the optimizer, whose state autocast leaves in float32, takes most of the step."""
    update = measured.step.of_phases("update")
    spot, config = Spot.of((one, one.ms) for one in update), measured.patient.config.optimizer
    measured.patient.facts["speed/optimizer_pct"] = measured.share_pct(spot.cost)
    if measured.share_pct(spot.cost) < _MIN_OPTIMIZER_PCT:
        return []
    is_split = len(update) > 2 * sum(1 for _ in measured.training.model.parameters())
    overrides = ["optimizer.fused=true"] if is_split and config.get("fused") is False else []
    return [measured.finding(OptimizerBound, spot, overrides, ms=spot.cost, num_operators=len(update))]


def slower_altogether(measured: MeasuredSteps, baseline: Baseline) -> list[SlowerThanFloat32]:
    """Find out whether the step takes longer than in float32."""
    if 100 * (1 - baseline.speedup.high) < _MIN_LOSS_PCT:
        return []
    return [
        SlowerThanFloat32(
            cost_pct=100 * (1 - baseline.speedup.median),
            step_ms=measured.times.median_ms,
            float32_ms=baseline.times.median_ms,
            speedup=baseline.speedup.median,
            casts_ms=total_ms(one for one in measured.step.calls if one.is_cast),
            num_operators=len(measured.step.calls),
            num_float32_operators=len(baseline.step.calls),
            change=Change(overrides=["precision=fp32"]),
        )
    ]


def casts(measured: MeasuredSteps) -> list[ActivationCasts]:
    """Find activations that are cast to float32 and, after some operators, back."""
    all_casts = [one for one in measured.step.of_phases("forward", "backward") if one.is_cast]
    measured.patient.facts["speed/casts_pct"] = measured.share_pct(total_ms(all_casts))
    measured.patient.facts["speed/casts_bytes_pct"] = _bytes_pct(all_casts, measured.step)
    times = _with_backward(measured.step.calls)
    by_index = {one.index: one for one in times}
    costs: dict[TimedCall, float] = defaultdict(float)
    for one, ms in times.items():
        up = by_index.get(one.cast_up) if one.cast_up is not None else None
        if up is not None and not up.is_of_parameter:
            costs[up] += ms
    return [
        measured.finding(
            ActivationCasts,
            spot,
            ms=spot.cost,
            bytes_pct=_bytes_pct(spot.calls, measured.step),
        )
        for spot in spots((up, times[up] + ms) for up, ms in costs.items())
        if measured.share_pct(spot.cost) >= _MIN_CASTS_PCT
    ]


def _with_backward(calls: Iterable[TimedCall]) -> dict[TimedCall, float]:
    """The casts of forward between float32 and half precision, each with its ms and those of its backward."""
    forward: dict[int, TimedCall] = {}
    times: dict[TimedCall, float] = {}
    for one in calls:
        if one.is_cast and one.phase == "forward" and {one.inputs[0].itemsize, one.outputs[0].itemsize} == {2, 4}:
            forward[one.index], times[one] = one, one.ms
        elif one.is_cast and one.forward is not None and one.forward.index in forward:
            times[forward[one.forward.index]] += one.ms
    return times


def _bytes_pct(some: Iterable[TimedCall], step: TimedStep) -> float:
    return 100 * sum(one.num_bytes for one in some) / max(sum(one.num_bytes for one in step.calls), 1)
