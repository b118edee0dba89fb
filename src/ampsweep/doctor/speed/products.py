"""Matrix products, convolutions and attention: computed in float32, of odd sizes, or on a device without fast units."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ampsweep.config.modes import step_dtypes
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.speed.device_rates import HALF, random_values
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, Baseline, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import total_ms
from ampsweep.doctor.spot import spots

_MIN_PRODUCT_RATIO: Final = 1.2
"""Rate in half precision over that in float32 from which a device has fast units."""
_MIN_PRODUCTS_PCT: Final = 20.0
_MIN_CALL_PCT: Final = 0.5
"""Share of a step from which a single call is tried."""
_MULTIPLE: Final = 8
"""Elements of half precision in 16 bytes, which tensor cores take at once (NVIDIA, "Train With Mixed Precision")."""
_MULTIPLE_OF_LARGE: Final = 64
_LARGE: Final = 1024
"""A size from which padding to a multiple of 64 adds little, as nanoGPT pads its vocabulary of 50257 to 50304."""
_PRODUCTS: Final = frozenset(("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"))
_MIN_UNALIGNED_PCT: Final = 5.0
_MIN_GAIN: Final = 0.1
"""Share of its time that padding must save of a product."""


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


class UnalignedSizes(SpeedFinding):
    template = "Matrices{inside} have sizes that the device's fast units do not take whole"
    remedy = "round the sizes up"
    gain_ms: float
    own_ms: float
    sizes: list[int]
    padded_sizes: list[int]

    @property
    def evidence(self) -> list[str]:
        padding = ", ".join(f"{own} to {new}" for own, new in zip(self.sizes, self.padded_sizes, strict=True))
        gain = "the same products took {gain_ms} less than their {own_ms}, in a step of {step_ms}"
        return [self.told(f"padded ({padding}), {gain}")]


def no_fast_units(measured: MeasuredSteps, baseline: Baseline) -> list[NoFastUnits]:
    """Find out whether this device multiplies matrices no faster in the dtype of the training than in float32."""
    rates, precision = measured.rates, measured.training.precision
    if precision.dtype not in HALF or rates.product_ratio(precision.dtype) >= _MIN_PRODUCT_RATIO:
        return []
    products = [one for one in measured.step.calls if one.flops and one.is_half]
    products_ms, former_ms = total_ms(products), total_ms(one for one in baseline.step.calls if one.flops)
    if former_ms >= _MIN_PRODUCT_RATIO * products_ms or measured.share_pct(products_ms) < _MIN_PRODUCTS_PCT:
        return []
    rate = {dtype: per_s / 1e9 for dtype, per_s in rates.flops_per_s.items()}
    fastest = max(HALF, key=rates.product_ratio)
    other = fastest if rates.product_ratio(fastest) >= _MIN_PRODUCT_RATIO else None
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


def unaligned_sizes(measured: MeasuredSteps) -> list[UnalignedSizes]:
    """Find matrix products in half precision that take less time with sizes rounded up to multiples of 8 or more."""
    wanted = [
        one
        for one in measured.step.of_phases("forward", "backward")
        if one.operator in _PRODUCTS
        and one.is_half
        and unaligned(one.sizes)
        and measured.share_pct(one.ms) >= _MIN_CALL_PCT
    ]
    saved = [(one, ms) for one, ms in measured.gains_ms(wanted, padded) if ms >= _MIN_GAIN * one.ms]
    findings = []
    for spot in spots(saved):
        if measured.share_pct(spot.cost) >= _MIN_UNALIGNED_PCT:
            sizes = unaligned([size for one in spot.calls for size in one.sizes])
            keys = [
                key for key, value in measured.patient.config.model.items() if type(value) is int and value in sizes
            ]
            finding = measured.finding(
                UnalignedSizes,
                spot,
                [f"model.{key}={rounded_up(measured.patient.config.model[key])}" for key in keys],
                gain_ms=spot.cost,
                own_ms=total_ms(spot.calls),
                sizes=sizes,
                padded_sizes=[*map(rounded_up, sizes)],
            )
            findings.append(finding)
    return findings


def unaligned(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """The last two sizes of matrices that are no multiple of 8, in ascending order."""
    return sorted({size for one in sizes if len(one) >= 2 for size in one[-2:] if size % _MULTIPLE})


def rounded_up(size: int) -> int:
    """The next multiple of 8, or of 64 if the size is large and no multiple of 8."""
    multiple = _MULTIPLE if size < _LARGE or not size % _MULTIPLE else _MULTIPLE_OF_LARGE
    return -(-size // multiple) * multiple


def padded(tensor: Tensor) -> Tensor:
    """A matrix or bias of the size that padding gives it, in the same layout, with other values."""
    kept = max(tensor.dim() - 2, 0)
    sizes = [*tensor.shape[:kept], *map(rounded_up, tensor.shape[kept:])]
    is_transposed = tensor.dim() >= 2 and tensor.stride(-2) == 1 and tensor.stride(-1) != 1
    if is_transposed:
        sizes[-1], sizes[-2] = sizes[-2], sizes[-1]
    values = random_values(sizes, tensor.dtype, tensor.device)
    return values.transpose(-1, -2) if is_transposed else values
