"""Devices that compute no faster in the dtype of the training, and steps that are slower in it for no single reason."""

from collections.abc import Sequence
from typing import Final

from ampsweep.config.modes import step_dtypes
from ampsweep.doctor.speed.bound import HALF_DTYPES
from ampsweep.doctor.speed.measured_steps import MeasuredSteps
from ampsweep.record.diagnosis import Change, Finding

_MIN_PRODUCT_RATIO: Final = 1.2
_MIN_PRODUCTS_PCT: Final = 20.0
_MIN_LOSS_PCT: Final = 10.0
_EXPLAINED: Final = 0.5
"""Share of what a precision costs that other findings explain, from which nothing more is told."""


def no_fast_units(measured: MeasuredSteps) -> list[Finding]:
    """Find out whether this device multiplies matrices no faster in the dtype of the training than in float32."""
    rates, baseline, dtype = measured.rates, measured.baseline, measured.training.precision.dtype
    if baseline is None or dtype not in HALF_DTYPES or rates.product_ratio(dtype) >= _MIN_PRODUCT_RATIO:
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
        Finding(
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


def slower_altogether(measured: MeasuredSteps, others: Sequence[Finding]) -> list[Finding]:
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
        Finding(
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
