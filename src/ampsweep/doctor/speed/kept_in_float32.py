"""Operators that compute in float32 in a half-precision step, and what they would save otherwise."""

from typing import Final

import torch

from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import by_origin, total_ms
from ampsweep.doctor.spot import Spot, spots
from ampsweep.numeric_formats import dtype_name

_MIN_CALL_PCT: Final = 0.5
"""Share of a step from which a single call is tried."""
_MIN_FIXED_PCT: Final = 35.0
"""Share of a step from which operators that precision does not shorten are reported."""
_MIN_OPTIMIZER_PCT: Final = 40.0
_SHRUNK: Final = 0.8
"""An operator that takes less than this of its time in float32 has gained from precision."""
_RECURRENT: Final = ("rnn", "lstm", "gru")
"""Parts of names of fused recurrent layers: most of each is products, which have no count of FLOPs."""


class Float32Products(SpeedFinding):
    template = "{operator} computes in float32{inside}{at}"
    seen = (
        "{num_calls} such products take {own_ms} of a step of {step_ms}; called with the same values in {dtype} they "
        "take {gain_ms} less",
    )
    remedy = "take out what switches autocast off there, and casts to float32"
    remedy_by_overrides = "let autocast have it"
    gain_ms: float
    own_ms: float
    num_calls: int
    dtype: str


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


def float32_products(measured: MeasuredSteps) -> list[Float32Products]:
    """Find matrix products, convolutions and attention that compute in float32, though half precision is faster."""
    precision = measured.training.precision
    dtype: torch.dtype = getattr(torch, precision.dtype)
    wanted = [
        one
        for one in measured.step.of_phases("forward", "backward")
        if one.flops and one.is_float32 and measured.share_pct(one.ms) >= _MIN_CALL_PCT
    ]
    saved = measured.gains_ms(wanted, lambda one: one.to(dtype) if one.dtype == torch.float32 else one)
    return [
        measured.finding(
            Float32Products,
            spot,
            ["precision.fp32_modules=[]"] if precision.fp32_modules else [],
            gain_ms=spot.cost,
            own_ms=total_ms(spot.calls),
            num_calls=len(spot.calls),
            dtype=precision.dtype,
        )
        for spot in spots(saved, by_line=True)
        if measured.share_pct(spot.cost) >= MIN_COST_PCT / 2
    ]


def fixed_operators(measured: MeasuredSteps) -> list[FixedOperators]:
    """Find operators other than products that take most of the step and no less time than in float32."""
    baseline = measured.baseline
    assert baseline is not None
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
