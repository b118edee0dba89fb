"""Devices that compute no faster in the dtype of the training, and operators and steps that are slower in it."""

from collections.abc import Iterable, Sequence
from typing import Final

from ampsweep.config.modes import step_dtypes
from ampsweep.doctor.speed.device_rates import HALF
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, Spot, spots
from ampsweep.doctor.speed.timed_calls import TimedCall, by_origin
from ampsweep.record.diagnosis import Change, DoctorFinding

_MIN_PRODUCT_RATIO: Final = 1.2
_MIN_PRODUCTS_PCT: Final = 20.0
_MIN_LOSS_PCT: Final = 10.0
_EXPLAINED: Final = 0.5
"""Share of what a precision costs that other findings explain, from which nothing more is told."""
_MIN_SLOWER_RATIO: Final = 1.25
"""Time in half precision over that in float32 from which calls count as slower."""
_MIN_OF_A_GAIN_PCT: Final = 30.0
"""Share of a step that they cost at least where the step as a whole is faster: kernels differ on every device."""


def no_fast_units(measured: MeasuredSteps) -> list[DoctorFinding]:
    """Find out whether this device multiplies matrices no faster in the dtype of the training than in float32."""
    rates, baseline, dtype = measured.rates, measured.baseline, measured.training.precision.dtype
    if baseline is None or dtype not in HALF or rates.product_ratio(dtype) >= _MIN_PRODUCT_RATIO:
        return []
    products = [one for one in measured.step.calls if one.flops and one.is_half]
    products_ms = sum(one.ms for one in products)
    former_ms = sum(one.ms for one in baseline.step.calls if one.flops)
    if former_ms >= _MIN_PRODUCT_RATIO * products_ms or measured.share_pct(products_ms) < _MIN_PRODUCTS_PCT:
        return []
    fastest = rates.fastest_half()
    other = fastest if fastest is not None and rates.product_ratio(fastest) >= _MIN_PRODUCT_RATIO else None
    best = other or "float32"
    gain = 1 - rates.measured_flops_per_s[dtype] / rates.measured_flops_per_s[best]
    cost_pct = max(100 * (1 - baseline.speedup.median), measured.share_pct(products_ms * gain), 0.0)
    precision = measured.training.precision
    in_bfloat16 = "amp_bf16"
    if precision.parameters == dtype:
        in_bfloat16 = "master_bf16" if step_dtypes(precision).optimizer_state == "float32" else "pure_bf16"
    mode = {"bfloat16": in_bfloat16, "float16": "amp_fp16", "float32": "fp32"}[best]
    return [
        DoctorFinding(
            complaint="speed",
            kind="no_fast_units",
            cost_pct=min(cost_pct, 100.0),
            operator=max(products, key=lambda one: one.ms).call.operator,
            evidence={
                "dtype": dtype,
                "gflops_per_s": rates.measured_flops_per_s[dtype] / 1e9,
                "float32_gflops_per_s": rates.measured_flops_per_s["float32"] / 1e9,
                "other_dtype": other,
                "other_gflops_per_s": None if other is None else rates.measured_flops_per_s[other] / 1e9,
                "products_pct": measured.share_pct(products_ms),
                "speedup": baseline.speedup.median,
            },
            change=Change(overrides=[f"precision={mode}"]),
        )
    ]


def slower_altogether(measured: MeasuredSteps, others: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    """Find out whether the step takes longer than in float32, for reasons that the other findings do not explain."""
    baseline = measured.baseline
    if baseline is None:
        return []
    loss_pct = 100 * (1 - baseline.speedup.high)
    explained_pct = sum(one.cost_pct or 0.0 for one in others)
    if loss_pct < _MIN_LOSS_PCT or explained_pct >= _EXPLAINED * loss_pct:
        return []
    casts_ms = sum(one.ms for one in measured.step.calls if one.is_cast)
    return [
        DoctorFinding(
            complaint="speed",
            kind="slower_than_float32",
            cost_pct=100 * (1 - baseline.speedup.median),
            evidence={
                "step_ms": measured.times.median_ms,
                "float32_ms": baseline.times.median_ms,
                "speedup": baseline.speedup.median,
                "speedup_high": baseline.speedup.high,
                "bound": baseline.bound,
                "casts_ms": casts_ms,
                "num_operators": len(measured.step.calls),
                "num_float32_operators": len(baseline.step.calls),
            },
            change=Change(overrides=["precision=fp32"]),
        )
    ]


def slower_operators(measured: MeasuredSteps) -> list[DoctorFinding]:
    """Find operators that half precision makes slower on this device."""
    baseline = measured.baseline
    if baseline is None:
        return []
    own, former = by_origin(measured.step.calls), by_origin(baseline.step.calls)
    costs = []
    for origin, calls in own.items():
        matched = former.get(origin, [])
        own_ms, former_ms = sum(one.ms for one in calls), sum(one.ms for one in matched)
        if (
            len(matched) != len(calls)
            or not any(one.is_half for one in calls)
            or own_ms < _MIN_SLOWER_RATIO * former_ms
        ):
            continue
        costs += [(one, (own_ms - former_ms) * (one.ms / own_ms)) for one in calls]
    least_pct = MIN_COST_PCT if measured.gains_little else _MIN_OF_A_GAIN_PCT
    return [_finding(measured, spot) for spot in spots(costs) if measured.share_pct(spot.ms) >= least_pct]


def _finding(measured: MeasuredSteps, spot: Spot) -> DoctorFinding:
    own_ms = sum(one.ms for one in spot.calls)
    return measured.finding(
        "slower_operators",
        spot,
        {
            "own_ms": own_ms,
            "float32_ms": own_ms - spot.ms,
            "dtype": measured.training.precision.dtype,
            "num_calls": len(spot.calls),
        },
        _fp32_override(measured, [name for name in spot.innermost if name]),
    )


def _fp32_override(measured: MeasuredSteps, names: list[str]) -> list[str]:
    """The override that keeps some modules in float32; none where they would lose more by that than they gain."""
    precision, baseline = measured.training.precision, measured.baseline
    if not names or not precision.autocast or baseline is None:
        return []
    own_ms, former_ms = _within(measured.step.calls, names), _within(baseline.step.calls, names)
    if own_ms <= former_ms:
        return []
    patterns = [*precision.fp32_modules, *names]
    return [f"precision.fp32_modules=[{','.join(patterns)}]"]


def _within(calls: Iterable[TimedCall], names: list[str]) -> float:
    """The time of all operators within some modules."""
    return sum(one.ms for one in calls if one.call.module is not None and _is_within(one.call.module, names))


def _is_within(module: str, names: list[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)
