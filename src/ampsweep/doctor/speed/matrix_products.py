"""Matrix products, convolutions and attention: computed in float32, or on a device without fast units."""

from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import Final

import torch

from ampsweep.config.modes import step_dtypes
from ampsweep.doctor.hot_spots import hot_spots
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, Baseline, MeasuredSteps, OperatorFinding, SpeedFinding
from ampsweep.doctor.speed.step_times import timed_ms
from ampsweep.doctor.speed.timed_calls import total_ms
from ampsweep.monitors.step_clock import Moments

_HALF: Final = ("bfloat16", "float16")
_SIZES: Final = {"cpu": (192, 512, 1024)}  # edges of square matrices
_SIZES_OF_ACCELERATORS: Final = (1024, 4096)
_MAX_PRODUCT_S: Final = 0.1  # a larger product is skipped if it would take longer, judging by the rate of the smaller
_ROUNDS: Final = 8
_MIN_PRODUCT_RATIO: Final = 1.2  # least speedup of products in half precision on a device with fast units
_MIN_PRODUCTS_PCT: Final = 20.0
_MIN_CALL_PCT: Final = 0.5  # least share of a step of a call that is tried


class NoFastUnits(SpeedFinding):
    template = "This device has no fast units for {dtype}"
    remedy = "train in a precision that this device is fast in"
    dtype: str
    gflops_per_s: float
    float32_gflops_per_s: float
    other_dtype: str | None  # a half precision that it has fast units for
    other_gflops_per_s: float | None
    products_pct: float
    speedup: float

    @property
    def evidence(self) -> list[str]:
        rates = "matrix products run at {gflops_per_s} GFLOP/s in {dtype} and at {float32_gflops_per_s} in float32"
        other = "" if self.other_dtype is None else "; in {other_dtype} at {other_gflops_per_s}"
        share = "they are {products_pct} of the step, which runs at {speedup}x the speed of float32"
        return [self.filled(rates + other), self.filled(share)]


class Float32Products(OperatorFinding):
    template = "{operator} computes in float32{inside}{at}"
    seen = ("{num_calls} such products take {own_ms} of a step of {step_ms}, and {gain_ms} less when tried in {dtype}",)
    remedy = "remove what switches autocast off there, and casts to float32"
    remedy_by_overrides = "let autocast have it"
    gain_ms: float
    dtype: str


def product_rates(device: torch.device, moments: Moments, *, seconds: float) -> dict[str, float]:
    """Operations per second of products of square matrices, of each dtype at its fastest size."""
    best: dict[str, float] = {}
    end_s = monotonic() + seconds
    for size in _SIZES.get(device.type, _SIZES_OF_ACCELERATORS):
        quick = {name for name in ("float32", *_HALF) if name not in best or 2 * size**3 / best[name] <= _MAX_PRODUCT_S}
        # A GPU draws less power for equal numbers, and its clocks stay higher.
        generator = torch.Generator(device).manual_seed(0)
        values = torch.randn(size, size, device=device, generator=generator)
        operands = {name: values.to(getattr(torch, name)) for name in quick}
        for number in range(1 + _ROUNDS):
            for dtype, operand in operands.items():
                per_s = 1e3 * 2 * size**3 / timed_ms(partial(torch.mm, operand, operand), moments)
                best[dtype] = max(per_s, best.get(dtype, 0.0))
            if number and monotonic() > end_s:
                break
    return best


def no_fast_units(measured: MeasuredSteps, baseline: Baseline) -> Iterator[NoFastUnits]:
    precision = measured.training.precision
    rate = {dtype: per_s / 1e9 for dtype, per_s in measured.product_rates.items()}
    if precision.dtype not in _HALF or rate[precision.dtype] >= _MIN_PRODUCT_RATIO * rate["float32"]:
        return
    products = [call for call in measured.step.calls if call.flops and call.is_half]
    products_ms, former_ms = total_ms(products), total_ms(call for call in baseline.step.calls if call.flops)
    if former_ms >= _MIN_PRODUCT_RATIO * products_ms or measured.share_pct(products_ms) < _MIN_PRODUCTS_PCT:
        return
    fastest = max(_HALF, key=lambda dtype: rate[dtype])
    other = fastest if rate[fastest] >= _MIN_PRODUCT_RATIO * rate["float32"] else None
    gain = 1 - rate[precision.dtype] / rate[other or "float32"]
    cost_pct = max(100 * (1 - baseline.speedup.median), measured.share_pct(products_ms * gain), 0.0)
    mode = {"bfloat16": "amp_bf16", "float16": "amp_fp16", "float32": "fp32"}[other or "float32"]
    if other == "bfloat16" and precision.parameters == precision.dtype:
        mode = "master_bf16" if step_dtypes(precision).optimizer_state == "float32" else "pure_bf16"
    yield measured.finding(
        NoFastUnits,
        None,
        [f"precision={mode}"],
        cost_pct=min(cost_pct, 100.0),
        operator=max(products, key=lambda call: call.ms).operator,
        dtype=precision.dtype,
        gflops_per_s=rate[precision.dtype],
        float32_gflops_per_s=rate["float32"],
        other_dtype=other,
        other_gflops_per_s=None if other is None else rate[other],
        products_pct=measured.share_pct(products_ms),
        speedup=baseline.speedup.median,
    )


def float32_products(measured: MeasuredSteps) -> Iterator[Float32Products]:
    precision = measured.training.precision
    dtype: torch.dtype = getattr(torch, precision.dtype)
    calls = (call for call in measured.step.of_phases("forward", "backward") if call.flops and call.is_float32)
    wanted = [call for call in calls if measured.share_pct(call.ms) >= _MIN_CALL_PCT]
    saved = measured.gains_ms(wanted, lambda tensor: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor)
    overrides = ["precision.fp32_modules=[]"] if precision.fp32_modules else []
    for spot in hot_spots(saved, by_line=True):
        if measured.share_pct(spot.cost) >= MIN_COST_PCT / 2:
            yield measured.finding(Float32Products, spot, overrides, gain_ms=spot.cost, dtype=precision.dtype)
