"""Operators and steps that are slower in half precision than in float32, or gain nothing from it."""

from collections.abc import Iterable, Sequence
from typing import Final

from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, Baseline, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall, by_origin, total_ms
from ampsweep.doctor.spot import Spot, spots
from ampsweep.numeric_formats import dtype_name

_MIN_LOSS_PCT: Final = 10.0
_EXPLAINED: Final = 0.5
"""Share of what a precision costs that other findings explain, from which it is not reported again."""
_MIN_SLOWER_RATIO: Final = 1.25
"""Time in half precision over that in float32 from which calls count as slower."""
_LITTLE_GAIN: Final = 1.2
"""A speedup below this is what people complain of."""
_MIN_OF_A_GAIN_PCT: Final = 30.0
"""Share of a step that they cost at least where the step as a whole is faster: kernels differ on every device."""
_MIN_FIXED_PCT: Final = 35.0
"""Share of a step from which operators that precision does not shorten are reported."""
_MIN_OPTIMIZER_PCT: Final = 40.0
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
    remedy_by_overrides = "keep what is slow in float32"
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
        "{step_ms} against {float32_ms}, taken in turn: {speedup}x the speed; at best {bound}x would be possible",
        "it has {num_operators} operators, in float32 {num_float32_operators}, and casts take {casts_ms}",
    )
    remedy = "train in float32, or give each operator more work"
    float32_ms: float
    speedup: float
    speedup_high: float
    bound: float
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
    least_pct = MIN_COST_PCT if baseline.speedup.median < _LITTLE_GAIN else _MIN_OF_A_GAIN_PCT
    return [
        measured.finding(
            SlowerOperators,
            spot,
            _fp32_override(measured, baseline, [name for name in spot.modules if name]),
            own_ms=total_ms(spot.calls),
            float32_ms=total_ms(spot.calls) - spot.cost,
            dtype=measured.training.precision.dtype,
            num_calls=len(spot.calls),
        )
        for spot in spots(costs)
        if measured.share_pct(spot.cost) >= least_pct
    ]


def _fp32_override(measured: MeasuredSteps, baseline: Baseline, names: list[str]) -> list[str]:
    """The override that keeps some modules in float32; none where they would lose more by that than they gain."""
    prefixes = tuple(f"{name}." for name in names)

    def within_ms(calls: Iterable[TimedCall]) -> float:
        return total_ms(one for one in calls if f"{one.module}.".startswith(prefixes))

    loses = within_ms(measured.step.calls) > within_ms(baseline.step.calls)
    precision = measured.training.precision
    return [kept_in_float32(precision, names)] if names and precision.autocast and loses else []


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


def slower_altogether(
    measured: MeasuredSteps, baseline: Baseline, others: Sequence[SpeedFinding]
) -> list[SlowerThanFloat32]:
    """Find out whether the step takes longer than in float32, for reasons that the other findings do not explain."""
    loss_pct = 100 * (1 - baseline.speedup.high)
    explained_pct = sum(one.cost_pct or 0.0 for one in others)
    if loss_pct < _MIN_LOSS_PCT or explained_pct >= _EXPLAINED * loss_pct:
        return []
    return [
        SlowerThanFloat32(
            cost_pct=100 * (1 - baseline.speedup.median),
            step_ms=measured.times.median_ms,
            float32_ms=baseline.times.median_ms,
            speedup=baseline.speedup.median,
            speedup_high=baseline.speedup.high,
            bound=baseline.bound,
            casts_ms=total_ms(one for one in measured.step.calls if one.is_cast),
            num_operators=len(measured.step.calls),
            num_float32_operators=len(baseline.step.calls),
            change=Change(overrides=["precision=fp32"]),
        )
    ]
