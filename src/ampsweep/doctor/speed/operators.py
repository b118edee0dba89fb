"""Operators that are slower in half precision than in float32, or tiny, needless casts, and unfused optimizers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from ampsweep.analysis.step_limits import MIN_US_PER_OPERATOR_CPU
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.float32_edits import names_at, smallest_edit
from ampsweep.doctor.half_edits import casts_at
from ampsweep.doctor.hot_spots import HotSpot, hot_spots, unnumbered
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, OperatorFinding, SpeedFinding
from ampsweep.doctor.speed.step_times import TimedAgain
from ampsweep.doctor.speed.timed_calls import TimedCall, total_ms
from ampsweep.user_code import CodeLine, is_own_source

_MIN_SLOWER_RATIO: Final = 1.25  # least slowdown against float32 that counts as slower
_MOST_EDITS: Final = 4  # that are tried for one finding
_MIN_REPEATED: Final = 8  # calls by a line in one module of functions with an operator that are a loop
_MIN_CASTS_PCT: Final = 6.0  # least reported share of a step; autocast needs some casts


class SlowerOperators(OperatorFinding):
    template = "{operator}{inside}{at} is slower in {dtype} than in float32"
    seen = ("{num_calls} calls take {own_ms} of a step of {step_ms} on this device, in float32 {float32_ms}",)
    remedy = "compute it in float32"
    float32_ms: float
    dtype: str


class ActivationCasts(SpeedFinding):
    template = "Activations{inside}{at} are cast at a cost"
    seen = ("the casts there and those of their gradients take {own_ms} of a step of {step_ms}",)
    remedy = "leave out the cast"


class LaunchBound(SpeedFinding):
    template = "A loop{inside}{at} calls operators that are too small"
    seen = (
        "it calls {num_operators} operators in a step, most often {operator}; with what launches them they take "
        "{us_per_operator} us each, {own_ms} of a step of {step_ms}",
    )
    remedy = "do the work of all its rounds in a single call, on larger tensors"
    num_operators: int
    us_per_operator: float


class OptimizerBound(OperatorFinding):
    template = "The optimizer takes much of the step"
    seen = ("{num_calls} operators after backward take {own_ms} of a step of {step_ms}, in the parameters' dtype",)
    remedy_by_overrides = "use the optimizer's fused kernel"


def slower_operators(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    former, costs = _by_origin(measured.baseline), list[tuple[TimedCall, float]]()
    for origin, calls in _by_origin(measured.calls()).items():
        same = former.get(origin, [])
        own_ms, former_ms = total_ms(calls), total_ms(same)
        is_comparable = len(same) == len(calls) and any(call.is_half for call in calls)
        is_tiny = 1e3 * own_ms < MIN_US_PER_OPERATOR_CPU * len(calls)  # mostly the host's work, which has no dtype
        if is_comparable and not is_tiny and own_ms > _MIN_SLOWER_RATIO * former_ms:
            costs += [(call, (own_ms - former_ms) * (call.ms / own_ms)) for call in calls]
    for spot in hot_spots(costs):
        if measured.share_pct(spot.cost) >= MIN_COST_PCT:
            facts = {"float32_ms": total_ms(spot.calls) - spot.cost, "dtype": measured.training.precision.dtype}
            change, proof = _in_float32(measured, spot)
            if proof is not None:
                yield measured.finding(SlowerOperators, spot, change, cost_ms=spot.cost, proof=proof, **facts)


def _by_origin(calls: Iterable[TimedCall]) -> dict[tuple[object, ...], list[TimedCall]]:
    """Group calls by module, line, operator and phase, without casts, which float32 lacks."""
    found: dict[tuple[object, ...], list[TimedCall]] = defaultdict(list)
    for call in calls:
        if not call.is_cast:
            found[call.module, call.place, call.operator, call.phase].append(call)
    return found


def _in_float32(measured: MeasuredSteps, spot: HotSpot[TimedCall]) -> tuple[Change, TimedAgain | None]:
    """Try to compute a spot's line in float32."""
    training, proofs, edit = measured.training, dict[CodeEdit, TimedAgain | None](), None

    def mends(edit: CodeEdit) -> bool:
        if len(proofs) < _MOST_EDITS:
            proofs[edit] = measured.tried(measured.examined.config, edit)
        return proofs.get(edit) is not None

    if isinstance(spot.place, CodeLine) and (names := names_at(measured.examined.replay(), spot.place, 1)) is not None:
        autocast = training.device.type if training.precision.autocast else None
        edit = smallest_edit(spot.place, names, mends, autocast=autocast)
    return (Change(), None) if edit is None else (Change(code=edit.patch), proofs[edit])


def unfused_optimizer(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    update, config = measured.calls("update"), measured.examined.config
    spot = HotSpot.of((call, call.ms + measured.launch_ms) for call in update)
    if config.optimizer.get("fused") is False and measured.share_pct(spot.cost) >= MIN_COST_PCT:
        proof = measured.tried(replace(config, optimizer={**config.optimizer, "fused": True}))
        if proof is not None:
            change = Change(overrides=["optimizer.fused=true"])
            yield measured.finding(OptimizerBound, spot, change, cost_ms=spot.cost, own_ms=spot.cost, proof=proof)


def casts(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Find the casts in the user's code that cost time, with those of their gradients."""
    lines: dict[CodeLine, list[TimedCall]] = defaultdict(list)
    for call in measured.calls():
        if call.is_cast and isinstance(call.place, CodeLine):
            lines[call.place].append(call)
    for line, calls in lines.items():
        ms = total_ms(calls)
        for edit in casts_at(line) if measured.share_pct(ms) >= _MIN_CASTS_PCT else ():
            if (proof := measured.tried(measured.examined.config, edit)) is not None:
                spot = HotSpot.of((call, call.ms) for call in calls)
                yield measured.finding(ActivationCasts, spot, Change(code=edit.patch), cost_ms=ms, proof=proof)
                break


def loops(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Find loops of the user's code that call tiny operators, by kind of module, or by file outside the model."""
    forward, launch_ms = measured.calls("forward"), measured.launch_ms
    # A recurrent layer calls many operators in a single function.
    num_rounds = Counter(site for site, _ in {(_site(call), id(call.function)) for call in forward})
    own = [call for call in forward if isinstance(call.place, CodeLine) and is_own_source(Path(call.place.file))]
    repeated = {call.index for call in own if num_rounds[_site(call)] >= _MIN_REPEATED}
    groups: dict[str, list[TimedCall]] = defaultdict(list)
    for call in measured.calls():
        if (call.forward or call).index in repeated:
            groups[str(call.place).partition(",")[0] if call.module is None else unnumbered(call.module)].append(call)
    for calls in groups.values():
        spot = HotSpot.of((call, call.ms + launch_ms) for call in calls)
        loop_ms = spot.cost
        if measured.training.moments.has_queue:  # the device computes what was queued before
            loop_ms = min(loop_ms, measured.idle_ms)
        is_tiny = 1e3 * total_ms(calls) <= MIN_US_PER_OPERATOR_CPU * len(calls)
        if is_tiny and measured.share_pct(loop_ms) >= MIN_COST_PCT:
            num, us_each = len(calls), 1e3 * loop_ms / len(calls)
            yield measured.finding(LaunchBound, spot, cost_ms=loop_ms, num_operators=num, us_per_operator=us_each)


def _site(call: TimedCall) -> tuple[str | None, ...]:
    return call.module, call.place, call.operator
