"""The examination of a loss: whether precision spoils it, by what, and the smallest change that mends it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.functions import CalledFunction
from ampsweep.doctor.loss.causes import CoarseRounding, ExpOverflow, OfOperator, OriginFacts, cause_of
from ampsweep.doctor.loss.changes import change_of_scale, code_in_float32, takes_shift
from ampsweep.doctor.loss.culprits import Culprits, CulpritSearch, trace_fault
from ampsweep.doctor.loss.fault import NOT_FINITE
from ampsweep.doctor.loss.findings import (
    FaultSigns,
    LossFinding,
    NotPrecision,
    OptimizerEps,
    Switches,
    TriedSteps,
    Unexplained,
    Unsearched,
    UpdatesLost,
    WholeModel,
)
from ampsweep.doctor.loss.loss_case import LossCase, OutOfTimeError
from ampsweep.doctor.loss.origins import NonfiniteOrigin
from ampsweep.doctor.loss.variant import Kept, Variant, price, unchanged_share
from ampsweep.doctor.patient import NotExaminedError, Patient

_LARGE_EPS: Final = 2.0**-12
"""The square root of float16's smallest number above zero: a smaller gradient has a square of zero there."""
_MOST_UNCHANGED: Final = 0.5
"""The share of weights that updates may leave unchanged: half of them."""
_FEW: Final = 8
_FEW_SHARE: Final = 0.25
"""The modules, and the share of all, that may be kept in float32 for a set to be told: of more, another mode is."""


def examine_loss(patient: Patient) -> Sequence[LossFinding]:
    """Examine whether the loss is finite, and as good as in float32."""
    if patient.is_baseline:
        return []
    own, base = patient.own_steps, patient.baseline_steps
    patient.facts["loss/steps"] = [
        {"step": one.number, "own": one.loss, "baseline": other.loss}
        for one, other in zip(own.steps, base.steps, strict=False)
    ]
    if own.error is not None:
        raise NotExaminedError(f"its steps end with an error ({type(own.error).__name__})")
    if not base.steps:
        raise NotExaminedError(f"the first step in float32 ends with {type(base.error).__name__}")
    case = LossCase(patient)
    if case.fault is None:
        return []
    if case.is_also_in_float32:
        return [NotPrecision(signs=_signs(case))]
    try:
        return [_under_autocast(case) if patient.config.precision.autocast else _without_autocast(case)]
    except OutOfTimeError:
        return [Unsearched(signs=_signs(case))]


def _under_autocast(case: LossCase) -> LossFinding:
    precision, signs = case.patient.config.precision, _signs(case)
    if (scale := change_of_scale(case)) is not None:
        return scale.cause(
            signs=signs,
            init_scale=precision.init_scale if precision.grad_scaler else None,
            change=Change(overrides=[scale.override]),
            proof=_tried(case, Variant(precision=scale.precision)),
        )
    off = replace(case.precision, autocast=False, dtype=precision.parameters, fp32_modules=[])
    switches = Switches(autocast_off_mends=case.mends(Variant(precision=off)))
    if precision.dtype == "float16":
        switched = replace(case.precision, grad_scaler=not precision.grad_scaler)
        name = "scaler_off_mends" if precision.grad_scaler else "scaler_on_mends"
        switches = replace(switches, **{name: case.mends(Variant(precision=switched))})
    if not switches.autocast_off_mends:
        return Unexplained(signs=signs, switches=switches)
    search = CulpritSearch(case)
    culprits = search.find()
    if culprits is None or len(culprits.kept) > max(_FEW, culprits.mending.num_modules * _FEW_SHARE):
        return _in_another_mode(case, WholeModel(signs=signs, switches=switches))
    calls, num_replays = search.calls(culprits)
    mending = replace(
        culprits.mending,
        functions=[one.function for one in calls],
        places=[one.place for one in calls],
        num_call_replays=num_replays if calls else 0,
    )
    found = _of_culprits(case, signs, replace(culprits, mending=mending), calls)
    return replace(found, switches=switches)


def _of_culprits(case: LossCase, signs: FaultSigns, culprits: Culprits, calls: Sequence[CalledFunction]) -> OfOperator:
    """The finding of a fault that some modules or lines mend."""
    origin = _first_of(culprits)
    place = origin.call.place if origin is not None else None
    operator = origin.call.operator if origin is not None else None
    if origin is None and calls:
        place, operator = calls[0].place, calls[0].function
    cause = CoarseRounding if origin is None else cause_of(origin)
    shifts = origin is not None and cause is ExpOverflow and takes_shift(case.patient, origin.call)
    line = cause.line if shifts or cause is not ExpOverflow else None
    are_modules = len(culprits.modules) == len(culprits.kept)
    overrides = [kept_in_float32(case.patient.config.precision, culprits.modules)] if are_modules else []
    kept: Sequence[Kept] = culprits.kept if are_modules or not calls else calls
    found = cause(
        signs=signs,
        modules=[one for one in map(_module_of, culprits.kept) if one is not None],
        operator=operator,
        place=place,
        origin=None if origin is None else OriginFacts.of(origin),
        mending=culprits.mending,
        change=Change(overrides=overrides, code=line or code_in_float32(calls)),
        proof=_tried(case, Variant(kept=frozenset(kept), precision=case.precision)),
    )
    return replace(found, takes_shift=shifts) if isinstance(found, ExpOverflow) else found


def _without_autocast(case: LossCase) -> LossFinding:
    """The finding of a fault of a training whose parameters are in half precision."""
    patient, signs, num_steps = case.patient, _signs(case), case.num_steps
    eps = patient.config.optimizer.get("eps")
    if patient.config.precision.parameters == "float16" and isinstance(eps, float) and eps < _LARGE_EPS:
        larger = Variant(optimizer={"eps": _LARGE_EPS})
        if case.mends(larger, num_steps):
            change = Change(overrides=[f"optimizer.eps={_LARGE_EPS!r}"])
            return OptimizerEps(signs=signs, eps=eps, change=change, proof=_tried(case, larger))
    if case.fault is not None and case.fault.sign not in NOT_FINITE:
        share = unchanged_share(patient, Variant(), num_steps)
        cause = UpdatesLost if share > _MOST_UNCHANGED else CoarseRounding
        return _in_another_mode(case, cause(signs=signs, unchanged_pct=100 * share))
    origins = trace_fault(case).origins
    if not origins:
        return _in_another_mode(case, Unexplained(signs=signs))
    call = origins[0].call
    found = cause_of(origins[0])(
        signs=signs,
        modules=[] if call.module is None else [call.module],
        operator=call.operator,
        place=call.place,
        origin=OriginFacts.of(origins[0]),
    )
    return _in_another_mode(case, found)


def _in_another_mode(case: LossCase, found: LossFinding) -> LossFinding:
    """The finding of a fault that another precision mode mends, the cheapest that does."""
    own, num_steps = case.patient.config.precision, case.num_steps
    for mode in (f"amp_{'fp16' if own.dtype == 'float16' else 'bf16'}", "amp_bf16"):
        changed = Variant(precision=PRECISION_MODES[mode])
        if mode != own.mode and case.mends(changed, num_steps):
            return replace(found, change=Change(overrides=[f"precision={mode}"]), proof=_tried(case, changed))
    return found


def _signs(case: LossCase) -> FaultSigns:
    """The facts that show the fault."""
    fault = case.fault
    assert fault is not None
    own, base = case.own.steps[fault.step - 1], case.baseline.steps
    return FaultSigns(
        sign=fault.sign,
        step=own.number,
        num_steps=case.num_steps,
        dtype=case.patient.config.precision.dtype,
        loss=own.loss,
        baseline_loss=base[fault.step - 1].loss if fault.step <= len(base) else None,
        scale=own.scale,
        num_skipped=None if own.scale is None else sum(one.is_skipped for one in case.own.steps),
        gap=fault.gap,
        allowed_gap=fault.allowed_gap,
        vanished_pct=None if fault.vanished_share is None else 100 * fault.vanished_share,
    )


def _tried(case: LossCase, changed: Variant) -> TriedSteps:
    """Replay all steps with a change: whether it mends, the last loss, and what it costs."""
    taken = changed.steps(case.patient, case.num_steps)
    proof = TriedSteps(mends=case.judge.fault(taken.steps, taken.error) is None, num_steps=len(taken.steps))
    if taken.steps:
        base = case.baseline.steps
        baseline_loss = base[min(len(taken.steps), len(base)) - 1].loss
        proof = replace(proof, loss=taken.steps[-1].loss, baseline_loss=baseline_loss)
    if taken.error is not None:
        return proof
    time_ratio, memory_ratio = price(case.patient, changed)
    return replace(proof, time_ratio=time_ratio, memory_ratio=memory_ratio)


def _first_of(culprits: Culprits) -> NonfiniteOrigin | None:
    """The first origin in one of the culprits, else the first that they lead to; None if everything is finite."""
    names = {_module_of(one) for one in culprits.kept}
    own = (one for one in culprits.origins if one.call.module in names)
    return next(own, culprits.origins[0] if culprits.origins else None)


def _module_of(kept: Kept) -> str | None:
    return kept.module if isinstance(kept, CalledFunction) else kept
