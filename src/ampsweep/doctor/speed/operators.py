"""Operators that are slower in half precision than in float32, or gain nothing from it, and needless casts."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ampsweep.analysis.step_limits import MIN_US_PER_OPERATOR_CPU
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.float32_edits import names_at, smallest_edit
from ampsweep.doctor.hot_spots import HotSpot, hot_spots
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, Baseline, MeasuredSteps, OperatorFinding, SpeedFinding
from ampsweep.doctor.speed.step_times import TimedAgain
from ampsweep.doctor.speed.timed_calls import TimedCall, by_origin, total_ms
from ampsweep.numeric_formats import dtype_name
from ampsweep.user_code import CodeLine

_MIN_SLOWER_RATIO: Final = 1.25  # least slowdown against float32 that counts as slower
_LITTLE_GAIN: Final = 1.2  # a speedup below this is what people complain of
_MIN_SLOWER_PCT: Final = 30.0  # least share of a step reported even if the step as a whole is faster
_MOST_EDITS: Final = 4  # that are tried for one finding
_MIN_FIXED_PCT: Final = 35.0  # least reported share of a step
_MIN_OPTIMIZER_PCT: Final = 40.0
_MIN_CASTS_PCT: Final = 6.0  # least reported share of a step; autocast needs some casts
_SHRUNK: Final = 0.8  # an operator that takes less than this of its time in float32 has gained from precision
_SLOW_RATIO: Final = 1.5  # of an operator's time over what its work takes: below, it is no slow operator
_RECURRENT: Final = ("rnn", "lstm", "gru")  # recurrent layers, some of which have no count of FLOPs


class SlowerOperators(OperatorFinding):
    template = "{operator}{inside}{at} is slower in {dtype} than in float32"
    seen = ("{num_calls} calls take {own_ms} of a step of {step_ms} on this device, in float32 {float32_ms}",)
    float32_ms: float
    dtype: str

    @property
    def advice(self) -> str | None:
        return None if self.proof is None else "compute it in float32"


class FixedOperators(OperatorFinding):
    template = "{operator}{inside}{at} takes much of the step, and gains nothing"
    seen = ("it and others there take {own_ms} of a step of {step_ms}, as in float32 (results: {dtypes})",)
    remedy = "replace it by a cheaper operator, or by matrix products, which are faster in half precision"
    dtypes: list[str]

    @property
    def advice(self) -> str | None:
        if self.expected_ms and self.own_ms < _SLOW_RATIO * self.expected_ms:
            return "do without it: it is as fast as this device moves its bytes"
        return super().advice


class ActivationCasts(SpeedFinding):
    template = "Activations{inside}{at} are cast to float32 and back"
    seen = ("they and the casts of their gradients take {ms} of a step of {step_ms}",)
    remedy = "remove the casts, or keep everything between them in the same dtype"
    ms: float


class OptimizerBound(OperatorFinding):
    template = "The optimizer takes most of the step"
    seen = ("{num_calls} operators after backward take {own_ms} of a step of {step_ms}, in the parameters' dtype",)
    remedy = "train in larger batches, or accumulate gradients over several, so that it steps less often"
    remedy_by_overrides = "use the optimizer's fused kernel"


class SlowerThanFloat32(SpeedFinding):
    template = "The step takes longer than in float32"
    remedy = "train in float32, or give each operator more work"


def slower_operators(measured: MeasuredSteps, baseline: Baseline) -> Iterator[SlowerOperators]:
    former = by_origin(baseline.step)
    costs = []
    for origin, calls in by_origin(measured.calls()).items():
        same = former.get(origin, [])
        own_ms, former_ms = total_ms(calls), total_ms(same)
        is_comparable = len(same) == len(calls) and any(call.is_half for call in calls)
        is_tiny = 1e3 * own_ms < MIN_US_PER_OPERATOR_CPU * len(calls)  # mostly the host's work, which has no dtype
        if is_comparable and not is_tiny and own_ms > _MIN_SLOWER_RATIO * former_ms:
            costs += [(call, (own_ms - former_ms) * (call.ms / own_ms)) for call in calls]
    least_pct = MIN_COST_PCT if baseline.speedup.median < _LITTLE_GAIN else _MIN_SLOWER_PCT
    for spot in hot_spots(costs):
        if measured.share_pct(spot.cost) >= least_pct:
            facts = {"float32_ms": total_ms(spot.calls) - spot.cost, "dtype": measured.training.precision.dtype}
            change, proof = _in_float32(measured, spot)
            yield measured.finding(SlowerOperators, spot, change, cost_ms=spot.cost, proof=proof, **facts)


def _in_float32(measured: MeasuredSteps, spot: HotSpot[TimedCall]) -> tuple[Change, TimedAgain | None]:
    """Try to compute a spot's line in float32."""
    training, proofs, edit = measured.training, dict[CodeEdit, TimedAgain | None](), None

    def mends(edit: CodeEdit) -> bool:
        if len(proofs) < _MOST_EDITS:
            proofs[edit] = measured.tried_config(measured.examined.config, around=edit.applied)
        return proofs.get(edit) is not None

    if isinstance(spot.place, CodeLine) and (names := names_at(measured.examined.replay(), spot.place, 1)) is not None:
        autocast = training.device.type if training.precision.autocast else None
        edit = smallest_edit(spot.place, names, mends, autocast=autocast)
    return (Change(), None) if edit is None else (Change(code=edit.patch), proofs[edit])


def fixed_operators(measured: MeasuredSteps, baseline: Baseline) -> Iterator[FixedOperators]:
    former = by_origin(baseline.step)
    fixed = []
    for origin, calls in by_origin(measured.calls("forward", "backward")).items():
        has_products = any(call.flops or any(name in call.operator for name in _RECURRENT) for call in calls)
        if not has_products and total_ms(calls) >= _SHRUNK * total_ms(former.get(origin, [])) > 0:
            fixed += [(call, call.ms) for call in calls]
    for spot in hot_spots(fixed):
        if measured.share_pct(spot.cost) >= _MIN_FIXED_PCT:
            dtypes = sorted({dtype_name(dtype) for call in spot.calls for dtype in call.outputs})
            yield measured.finding(FixedOperators, spot, cost_ms=spot.cost, dtypes=dtypes)


def optimizer(measured: MeasuredSteps) -> Iterator[OptimizerBound]:
    update, config = measured.calls("update"), measured.examined.config
    spot = HotSpot.of((call, call.ms + measured.launch_ms) for call in update)
    measured.examined.facts["speed/optimizer_pct"] = 100 * spot.cost / measured.step_ms
    if measured.share_pct(spot.cost) < _MIN_OPTIMIZER_PCT:
        return
    is_split = len(update) > 2 * sum(1 for _ in measured.training.model.parameters())
    proof = None
    if is_split and config.optimizer.get("fused") is False:
        proof = measured.tried_config(replace(config, optimizer={**config.optimizer, "fused": True}))
    overrides = [] if proof is None else ["optimizer.fused=true"]
    yield measured.finding(
        OptimizerBound, spot, Change(overrides=overrides), cost_ms=spot.cost, own_ms=spot.cost, proof=proof
    )


def slower_altogether(measured: MeasuredSteps, baseline: Baseline) -> Iterator[SlowerThanFloat32]:
    if 100 * (1 - baseline.speedup.high) >= MIN_COST_PCT:
        yield measured.finding(
            SlowerThanFloat32,
            None,
            Change(overrides=["precision=fp32"]),
            cost_ms=(1 - baseline.speedup.median) * measured.own_ms,
            proof=measured.timed_again(measured.times, baseline.times),
        )


def casts(measured: MeasuredSteps) -> Iterator[ActivationCasts]:
    measured.examined.facts["speed/casts_ms"] = total_ms(call for call in measured.step if call.is_cast)
    times = _with_backward(measured.calls())
    by_index = {call.index: call for call in times}
    costs: dict[TimedCall, float] = defaultdict(float)
    for call, ms in times.items():
        up = by_index.get(call.cast_up) if call.cast_up is not None else None
        if up is not None and not up.is_of_parameter:
            costs[up] += ms
    for spot in hot_spots((up, times[up] + ms) for up, ms in costs.items()):
        if measured.share_pct(spot.cost) >= _MIN_CASTS_PCT:
            yield measured.finding(ActivationCasts, spot, cost_ms=spot.cost, ms=spot.cost)


def _with_backward(calls: Iterable[TimedCall]) -> dict[TimedCall, float]:
    forward: dict[int, TimedCall] = {}
    times: dict[TimedCall, float] = {}
    for call in calls:
        if call.is_cast and call.phase == "forward" and {call.inputs[0].itemsize, call.outputs[0].itemsize} == {2, 4}:
            forward[call.index], times[call] = call, call.ms
        elif call.is_cast and call.forward is not None and call.forward.index in forward:
            times[forward[call.forward.index]] += call.ms
    return times
