"""Devices that compute no faster in the dtype of the training, and operators and steps that are slower in it."""

from collections.abc import Iterable, Sequence
from typing import Final

from ampsweep.config.modes import step_dtypes
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.speed.device_rates import HALF
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall, by_origin, total_ms
from ampsweep.doctor.spot import spots

_MIN_PRODUCT_RATIO: Final = 1.2
_MIN_PRODUCTS_PCT: Final = 20.0
_MIN_LOSS_PCT: Final = 10.0
_EXPLAINED: Final = 0.5
"""Share of what a precision costs that other findings explain, from which it is not reported again."""
_MIN_SLOWER_RATIO: Final = 1.25
"""Time in half precision over that in float32 from which calls count as slower."""
_LITTLE_GAIN: Final = 1.2
"""A speedup below this is what people complain of."""
_MIN_OF_A_GAIN_PCT: Final = 30.0
"""Share of a step that they cost at least where the step as a whole is faster: kernels differ on every device."""


class NoFastUnits(SpeedFinding):
    template = "This device has no fast units for {dtype}"
    remedy = "train in a precision that this device is fast in"
    dtype: str
    gflops_per_s: float
    float32_gflops_per_s: float
    other_dtype: str | None
    """A half precision that it has fast units for."""
    other_gflops_per_s: float | None
    products_pct: float
    speedup: float

    @property
    def evidence(self) -> list[str]:
        rates = "matrix products run at {gflops_per_s} GFLOP/s in {dtype} and at {float32_gflops_per_s} in float32"
        other = "" if self.other_dtype is None else "; in {other_dtype} at {other_gflops_per_s}"
        share = "they are {products_pct} of the step, which runs at {speedup}x the speed of float32"
        return [self.told(rates + other), self.told(share)]


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


def no_fast_units(measured: MeasuredSteps) -> list[NoFastUnits]:
    """Find out whether this device multiplies matrices no faster in the dtype of the training than in float32."""
    rates, baseline, precision = measured.rates, measured.baseline, measured.training.precision
    assert baseline is not None
    if precision.dtype not in HALF or rates.product_ratio(precision.dtype) >= _MIN_PRODUCT_RATIO:
        return []
    products = [one for one in measured.step.calls if one.flops and one.is_half]
    products_ms, former_ms = total_ms(products), total_ms(one for one in baseline.step.calls if one.flops)
    if former_ms >= _MIN_PRODUCT_RATIO * products_ms or measured.share_pct(products_ms) < _MIN_PRODUCTS_PCT:
        return []
    rate = {dtype: per_s / 1e9 for dtype, per_s in rates.measured_flops_per_s.items()}
    fastest = rates.fastest_half()
    other = fastest if fastest is not None and rates.product_ratio(fastest) >= _MIN_PRODUCT_RATIO else None
    gain = 1 - rate[precision.dtype] / rate[other or "float32"]
    cost_pct = max(100 * (1 - baseline.speedup.median), measured.share_pct(products_ms * gain), 0.0)
    mode = {"bfloat16": "amp_bf16", "float16": "amp_fp16", "float32": "fp32"}[other or "float32"]
    if other == "bfloat16" and precision.parameters == precision.dtype:
        mode = "master_bf16" if step_dtypes(precision).optimizer_state == "float32" else "pure_bf16"
    return [
        NoFastUnits(
            cost_pct=min(cost_pct, 100.0),
            operator=max(products, key=lambda one: one.ms).operator,
            step_ms=measured.step_ms,
            dtype=precision.dtype,
            gflops_per_s=rate[precision.dtype],
            float32_gflops_per_s=rate["float32"],
            other_dtype=other,
            other_gflops_per_s=None if other is None else rate[other],
            products_pct=measured.share_pct(products_ms),
            speedup=baseline.speedup.median,
            change=Change(overrides=[f"precision={mode}"]),
        )
    ]


def slower_altogether(measured: MeasuredSteps, others: Sequence[SpeedFinding]) -> list[SlowerThanFloat32]:
    """Find out whether the step takes longer than in float32, for reasons that the other findings do not explain."""
    baseline = measured.baseline
    assert baseline is not None
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


def slower_operators(measured: MeasuredSteps) -> list[SlowerOperators]:
    """Find operators that half precision makes slower on this device."""
    baseline = measured.baseline
    assert baseline is not None
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
            _fp32_override(measured, [name for name in spot.modules if name]),
            own_ms=total_ms(spot.calls),
            float32_ms=total_ms(spot.calls) - spot.cost,
            dtype=measured.training.precision.dtype,
            num_calls=len(spot.calls),
        )
        for spot in spots(costs)
        if measured.share_pct(spot.cost) >= least_pct
    ]


def _fp32_override(measured: MeasuredSteps, names: list[str]) -> list[str]:
    """The override that keeps some modules in float32; none where they would lose more by that than they gain."""
    assert measured.baseline is not None
    prefixes = tuple(f"{name}." for name in names)

    def within_ms(calls: Iterable[TimedCall]) -> float:
        return total_ms(one for one in calls if f"{one.module}.".startswith(prefixes))

    loses = within_ms(measured.step.calls) > within_ms(measured.baseline.step.calls)
    precision = measured.training.precision
    return [kept_in_float32(precision, names)] if names and precision.autocast and loses else []
