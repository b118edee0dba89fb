"""The examination of a loss: whether precision spoils it, by what, and the smallest change that mends it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.loss.changes import change_of_scale, code_for, kept_override, takes_shift
from ampsweep.doctor.loss.culprits import CulpritCalls, Culprits, CulpritSearch, trace_fault
from ampsweep.doctor.loss.fault import NOT_FINITE
from ampsweep.doctor.loss.function_calls import CalledFunction
from ampsweep.doctor.loss.loss_case import LossCase, OutOfTimeError
from ampsweep.doctor.loss.origins import NonfiniteOrigin, cause_of
from ampsweep.doctor.loss.refusals import examine_refusal
from ampsweep.doctor.loss.vanishing import unchanged_share
from ampsweep.doctor.loss.variant import Kept, Variant, price
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.record.diagnosis import Change, DoctorFinding, written

_LARGE_EPS: Final = 2.0**-12
"""The square root of float16's smallest number above zero: a smaller gradient has a square of zero there."""
_MOST_UNCHANGED: Final = 0.5
"""The share of weights that updates may leave unchanged: half of them."""
_FEW: Final = 8
_FEW_SHARE: Final = 0.25
"""The modules, and the share of all, that may be kept in float32 for a set to be told: of more, another mode is."""


def examine_loss(patient: Patient) -> Sequence[DoctorFinding]:
    """Examine whether the loss is finite, and as good as in float32."""
    if patient.is_baseline:
        return []
    own, base = patient.own_steps, patient.baseline_steps
    patient.facts["loss/steps"] = [
        {"step": one.number, "own": _or_none(one.loss), "baseline": _or_none(other.loss)}
        for one, other in zip(own.steps, base.steps, strict=False)
    ]
    if own.error is not None:
        return [] if base.error is not None else examine_refusal(patient, own.error)
    if not base.steps:
        raise NotExaminedError(f"the first step in float32 ends with {type(base.error).__name__}")
    case = LossCase(patient)
    if case.fault is None:
        return []
    if case.is_also_in_float32:
        return [DoctorFinding(complaint="loss", kind="not_precision", evidence=_shown(case))]
    try:
        return [_under_autocast(case) if patient.config.precision.autocast else _without_autocast(case)]
    except OutOfTimeError:
        return [DoctorFinding(complaint="loss", kind="unsearched", evidence=_shown(case))]


def _under_autocast(case: LossCase) -> DoctorFinding:
    precision, evidence = case.patient.config.precision, _shown(case)
    if (scale := change_of_scale(case)) is not None:
        evidence["init_scale"] = precision.init_scale if precision.grad_scaler else None
        return DoctorFinding(
            complaint="loss",
            kind=scale.kind,
            evidence=evidence,
            change=Change(overrides=[scale.override]),
            proof=_proof(case, Variant(precision=scale.precision)),
        )
    off = replace(case.precision, autocast=False, dtype=precision.parameters, fp32_modules=[])
    evidence["autocast_off_mends"] = case.mends(Variant(precision=off))
    if precision.dtype == "float16":
        switched = replace(case.precision, grad_scaler=not precision.grad_scaler)
        name = "scaler_off_mends" if precision.grad_scaler else "scaler_on_mends"
        evidence[name] = case.mends(Variant(precision=switched))
    if not evidence["autocast_off_mends"]:
        return DoctorFinding(complaint="loss", kind="unexplained", evidence=evidence)
    search = CulpritSearch(case)
    culprits = search.find()
    if culprits is None or len(culprits.kept) > max(_FEW, culprits.num_modules * _FEW_SHARE):
        return _in_another_mode(case, "whole_model", evidence)
    return _of_culprits(case, evidence, culprits, search.calls(culprits))


def _of_culprits(
    case: LossCase, evidence: dict[str, object], culprits: Culprits, calls: CulpritCalls | None
) -> DoctorFinding:
    """The finding of a fault that some modules or lines mend."""
    origin = _first_of(culprits)
    place = origin.call.place if origin is not None else None
    operator = origin.call.operator if origin is not None else None
    if origin is None and calls is not None:
        place, operator = calls.calls[0].place, calls.calls[0].function
    evidence |= {
        "num_replays": culprits.num_replays,
        "most_replays": culprits.bound,
        "num_modules": culprits.num_modules,
        "is_minimal": culprits.is_minimal,
        **(_told(origin) if origin is not None else {}),
    }
    if calls is not None:
        evidence |= {
            "functions": [one.function for one in calls.calls],
            "places": [one.place for one in calls.calls],
            "num_call_replays": calls.num_replays,
        }
    kind = "coarse_rounding" if origin is None else cause_of(origin)
    if origin is not None and kind == "exp_overflow":
        evidence["takes_shift"] = takes_shift(case.patient, origin.call)
    are_modules = len(culprits.modules) == len(culprits.kept)
    overrides = [kept_override(case.patient.config.precision, culprits.modules)] if are_modules else []
    kept: Sequence[Kept] = culprits.kept if are_modules or calls is None else calls.calls
    return DoctorFinding(
        complaint="loss",
        kind=kind,
        modules=[one for one in map(_module_of, culprits.kept) if one is not None],
        operator=operator,
        place=place,
        evidence=evidence,
        change=Change(overrides=overrides, code=code_for(kind, evidence, calls)),
        proof=_proof(case, Variant(kept=frozenset(kept), precision=case.precision)),
    )


def _without_autocast(case: LossCase) -> DoctorFinding:
    """The finding of a fault of a training whose parameters are in half precision."""
    patient, evidence = case.patient, _shown(case)
    precision, num_steps = patient.config.precision, case.num_steps
    eps = patient.config.optimizer.get("eps")
    if precision.parameters == "float16" and isinstance(eps, float) and eps < _LARGE_EPS:
        larger = Variant(optimizer={"eps": _LARGE_EPS})
        if case.mends(larger, num_steps):
            return DoctorFinding(
                complaint="loss",
                kind="optimizer_eps",
                operator=None,
                evidence=evidence | {"eps": eps},
                change=Change(overrides=[f"optimizer.eps={_LARGE_EPS!r}"]),
                proof=_proof(case, larger),
            )
    if case.fault is not None and case.fault.sign not in NOT_FINITE:
        share = unchanged_share(patient, Variant(), num_steps)
        evidence["unchanged_pct"] = 100 * share
        kind = "updates_lost" if share > _MOST_UNCHANGED else "coarse_rounding"
        return _in_another_mode(case, kind, evidence)
    origins = trace_fault(case).origins
    if not origins:
        return _in_another_mode(case, "unexplained", evidence)
    first = origins[0]
    found = _in_another_mode(case, cause_of(first), evidence | _told(first))
    modules = [] if first.call.module is None else [first.call.module]
    return replace(found, modules=modules, operator=first.call.operator, place=first.call.place)


def _in_another_mode(case: LossCase, kind: str, evidence: dict[str, object]) -> DoctorFinding:
    """The finding of a fault that another precision mode mends, the cheapest that does."""
    own, num_steps = case.patient.config.precision, case.num_steps
    for mode in (f"amp_{'fp16' if own.dtype == 'float16' else 'bf16'}", "amp_bf16"):
        changed = Variant(precision=PRECISION_MODES[mode])
        if mode != own.mode and case.mends(changed, num_steps):
            change = Change(overrides=[f"precision={mode}"])
            return DoctorFinding(
                complaint="loss", kind=kind, evidence=evidence, change=change, proof=_proof(case, changed)
            )
    return DoctorFinding(complaint="loss", kind=kind, evidence=evidence)


def _shown(case: LossCase) -> dict[str, object]:
    """The evidence of how the fault shows."""
    fault, precision = case.fault, case.patient.config.precision
    assert fault is not None
    own = case.own.steps[fault.step - 1]
    shown: dict[str, object] = {
        "sign": fault.sign,
        "step": own.number,
        "num_steps": case.num_steps,
        "dtype": precision.dtype,
        "loss": written(own.loss),
    }
    if fault.step <= len(case.baseline.steps):
        shown["baseline_loss"] = written(case.baseline.steps[fault.step - 1].loss)
    if own.scale is not None:
        shown["scale"] = own.scale
        shown["num_skipped"] = sum(one.is_skipped for one in case.own.steps)
    for name in ("gap", "allowed_gap"):
        if (value := getattr(fault, name)) is not None:
            shown[name] = written(value)
    if fault.vanished_share is not None:
        shown["vanished_pct"] = 100 * fault.vanished_share
    return shown


def _told(origin: NonfiniteOrigin) -> dict[str, object]:
    """The evidence of an operator that made inf or NaN."""
    call = origin.call
    told: dict[str, object] = {
        "phase": call.phase,
        "output_dtype": str(call.outputs[0] if call.outputs else call.inputs[0]).removeprefix("torch."),
        "input_max_abs": origin.input_max_abs,
        "has_nan": origin.has_nan,
    }
    if call.forward is not None:
        told["forward_operator"] = call.forward.operator
    if origin.float32_max_abs is not None:
        told["float32_max_abs"] = origin.float32_max_abs
    if origin.lost_scalar is not None:
        told["eps"] = origin.lost_scalar
    if origin.reduced_elements > 1:
        told["reduced_elements"] = origin.reduced_elements
    return told


def _proof(case: LossCase, changed: Variant) -> dict[str, object]:
    """Replay all steps with a change: whether it mends, the last loss, and what it costs."""
    patient, num_steps = case.patient, case.num_steps
    taken = changed.steps(patient, num_steps)
    fault = case.judge.fault(taken.steps, taken.error)
    proof: dict[str, object] = {"mends": fault is None, "num_steps": len(taken.steps)}
    if taken.steps:
        proof["loss"] = written(taken.steps[-1].loss)
        proof["baseline_loss"] = written(case.baseline.steps[min(len(taken.steps), len(case.baseline.steps)) - 1].loss)
    return proof if taken.error is not None else proof | price(patient, changed)


def _first_of(culprits: Culprits) -> NonfiniteOrigin | None:
    """The first origin in one of the culprits, else the first that they lead to; None if everything is finite."""
    names = {_module_of(one) for one in culprits.kept}
    own = (one for one in culprits.origins if one.call.module in names)
    return next(own, culprits.origins[0] if culprits.origins else None)


def _module_of(kept: Kept) -> str | None:
    return kept.module if isinstance(kept, CalledFunction) else kept


def _or_none(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
