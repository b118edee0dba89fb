"""Matrix products, convolutions and attention: computed in float32, or on a device without fast units."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, TriedChange
from ampsweep.doctor.half_edits import autocast_on_at
from ampsweep.doctor.hot_spots import HotSpot, common_module
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, OperatorFinding, SpeedFinding
from ampsweep.doctor.speed.step_times import BareTraining, timed_ms, times_in_turn
from ampsweep.doctor.speed.timed_calls import TimedCall, timed_in_turn, total_flops, total_ms
from ampsweep.monitors.step_clock import Moments
from ampsweep.text import percent

_HALF: Final = ("bfloat16", "float16")
_PRODUCTS_S: Final = 1.0
_MIN_PRODUCT_RATIO: Final = 1.2  # least speedup of products in half precision on a device with fast units
_MIN_PRODUCTS_PCT: Final = 20.0


class NoFastUnits(SpeedFinding):
    template = "This device has no fast units for {dtype}"
    seen = ("matrix products, {products_pct} of the step, run {rate_x} as fast as in float32",)
    remedy = "train in a precision that this device is fast in"
    dtype: str
    rate_x: float
    products_pct: float


@dataclass(frozen=True, kw_only=True)
class RunsInHalf(TriedChange):
    half_pct: float  # of the step's operations of products in half precision

    @property
    def sentence(self) -> str:
        return f"tried: {percent(self.half_pct)} of its products then run in half precision"


class AutocastIsOff(OperatorFinding):
    template = "Autocast is off{inside}{at}"
    seen = ("{num_calls} products in float32, with those of gradients, take {own_ms} of a step of {step_ms}",)
    remedy = "leave it on: it keeps what needs float32 in float32"
    remedy_by_overrides = remedy


def product_rates(device: torch.device, moments: Moments) -> dict[str, float]:
    """Operations per second of a product of square matrices, by the dtype of its operands."""
    size = 512 if device.type == "cpu" else 4096
    # A GPU draws less power for equal numbers, and its clocks stay higher.
    values = torch.randn(size, size, device=device, generator=torch.Generator(device).manual_seed(0))
    operands = [values.to(getattr(torch, name)) for name in ("float32", *_HALF)]
    products = [partial(timed_ms, partial(torch.mm, operand, operand), moments) for operand in operands]
    times = times_in_turn(products, seconds=_PRODUCTS_S)
    return {name: 2e3 * size**3 / min(ms) for name, ms in zip(("float32", *_HALF), times, strict=True)}


def no_fast_units(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    config, dtype = measured.examined.config, measured.training.precision.dtype
    products = [call for call in measured.calls() if call.flops and call.is_half]
    products_ms, former_ms = total_ms(products), total_ms(call for call in measured.baseline if call.flops)
    is_faster = former_ms >= _MIN_PRODUCT_RATIO * products_ms
    if dtype not in _HALF or is_faster or measured.share_pct(products_ms) < _MIN_PRODUCTS_PCT:
        return
    rate = product_rates(measured.training.device, measured.training.moments)
    if rate[dtype] >= _MIN_PRODUCT_RATIO * rate["float32"]:
        return
    fastest = max(rate, key=lambda dtype: rate[dtype] / (_MIN_PRODUCT_RATIO if dtype in _HALF else 1))
    mode = {"float32": "fp32", "bfloat16": "amp_bf16", "float16": "amp_fp16"}[fastest]
    if (proof := measured.tried(replace(config, precision=PRECISION_MODES[mode]))) is not None:
        spot = replace(HotSpot.of((call, call.ms) for call in products), modules=[], place=None)
        change, cost_ms = Change(overrides=[f"precision={mode}"]), proof.gain_pct / 100 * measured.own_ms
        facts = {"products_pct": 100 * products_ms / measured.step_ms, "rate_x": rate[dtype] / rate["float32"]}
        yield measured.finding(NoFastUnits, spot, change, cost_ms=cost_ms, proof=proof, dtype=dtype, **facts)


def autocast_is_off(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Find what switches autocast off around much of the arithmetic of a step, and costs time by it; or around most of
    it, whatever that costs at this size."""
    precision, regions = measured.training.precision, defaultdict[CodeEdit | None, list[TimedCall]](list)
    products = [call for call in measured.calls() if call.flops and call.is_float32]
    is_searched = precision.autocast and bool(products)
    edits = autocast_on_at(measured.examined, {call.place for call in products}) if is_searched else {}
    for call in products:
        edit = edits.get(str(call.place))
        if edit is not None or precision.fp32_modules:
            regions[edit].append(call)
    for edit, calls in regions.items():
        spot, config = HotSpot.of((call, call.ms) for call in calls), measured.examined.config
        if edit is None:
            change, place = Change(overrides=["precision.fp32_modules=[]"]), None
            config = replace(config, precision=replace(config.precision, fp32_modules=[]))
        else:
            change, place = Change(code=edit.patch), edit.place
        proof: TriedChange | None = None
        cost_ms = spot.cost
        if measured.share_pct(cost_ms) >= MIN_COST_PCT and (timed := measured.tried(config, edit)) is not None:
            proof, cost_ms = timed, timed.gain_pct / 100 * measured.own_ms
        elif total_flops(calls) > total_flops(measured.step) / 2:
            proof = _runs_in_half(measured, config, edit)
        if proof is not None:
            spot = replace(spot, operator=None, place=place)
            modules = [*dict.fromkeys([common_module(spot.modules), *spot.modules])]
            yield measured.finding(AutocastIsOff, spot, change, cost_ms=cost_ms, proof=proof, modules=modules)


def _runs_in_half(measured: MeasuredSteps, config: Config, edit: CodeEdit | None) -> RunsInHalf | None:
    try:
        (step,) = timed_in_turn([BareTraining(measured.examined, config, edit)], seconds=0.0)
    except Exception:  # noqa: BLE001  a change may not suit the training in any way
        return None
    before, after = (
        100 * total_flops(call for call in calls if call.is_half) / max(total_flops(calls), 1)
        for calls in (measured.step, step)
    )
    return RunsInHalf(mends=True, half_pct=after) if after > before else None
