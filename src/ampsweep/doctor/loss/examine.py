"""The examination of a loss: whether precision spoils it, by what, and the smallest change that mends it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.loss.culprits import Culprits, find_culprits, trace_fault
from ampsweep.doctor.loss.fault import NOT_FINITE, FaultSigns, LossCase, OutOfTimeError
from ampsweep.doctor.loss.findings import (
    CoarseRounding,
    GradientsVanish,
    LossFinding,
    NotPrecision,
    OfOperator,
    OptimizerEps,
    ScalerFault,
    Switches,
    TriedSteps,
    Unexplained,
    Unsearched,
    UpdatesLost,
    WholeModel,
    WrongScale,
    cause_of,
)
from ampsweep.doctor.loss.variant import Kept, OwnCalls, Variant, unchanged_share
from ampsweep.doctor.patient import NotExaminedError, Patient

_LARGE_EPS: Final = 2.0**-12
"""The square root of float16's smallest number above zero: a smaller gradient has a square of zero there."""
_MOST_UNCHANGED: Final = 0.5
"""The share of weights that updates may leave unchanged: half of them."""


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
    signs = case.fault
    if case.is_also_in_float32:
        return [NotPrecision(signs=signs)]
    try:
        find = _under_autocast if patient.config.precision.autocast else _without_autocast
        return [find(case, signs)]
    except OutOfTimeError:
        return [Unsearched(signs=signs)]


def _under_autocast(case: LossCase, signs: FaultSigns) -> LossFinding:
    precision = case.patient.config.precision
    if (scale := _of_scale(case, signs)) is not None:
        return scale
    off = replace(case.precision, autocast=False, dtype=precision.parameters, fp32_modules=[])
    switches = Switches(autocast_off_mends=case.mends(Variant(precision=off)))
    if precision.dtype == "float16":
        switched = replace(case.precision, grad_scaler=not precision.grad_scaler)
        name = "scaler_off_mends" if precision.grad_scaler else "scaler_on_mends"
        switches = replace(switches, **{name: case.mends(Variant(precision=switched))})
    if not switches.autocast_off_mends:
        return Unexplained(signs=signs, switches=switches)
    culprits = find_culprits(case)
    if culprits is None:
        return _in_another_mode(case, WholeModel(signs=signs, switches=switches))
    return replace(_of_culprits(case, signs, culprits), switches=switches)


def _of_scale(case: LossCase, signs: FaultSigns) -> ScalerFault | None:
    """The finding of a fault that a change of the scaler alone mends.

    A fault in which the scaler skips steps at any scale then shows in the first step of the case's trials.
    """
    own, num_steps = case.patient.config.precision, case.num_steps
    if own.dtype != "float16":
        return None
    usual, is_finite = PrecisionConfig.init_scale, signs.sign not in NOT_FINITE
    kind: type[ScalerFault] | None = None
    if not own.grad_scaler and is_finite:
        kind, override = GradientsVanish, "precision.grad_scaler=true"
        changed = Variant(precision=replace(own, grad_scaler=True))
    elif own.grad_scaler and own.init_scale != usual and (is_finite or signs.sign == "skipped_steps"):
        kind, override = WrongScale, f"precision.init_scale={usual:g}"
        changed = Variant(precision=replace(own, init_scale=usual))
    if kind is not None and case.mends(changed, num_steps):
        return kind(
            signs=signs,
            init_scale=own.init_scale if own.grad_scaler else None,
            change=Change(overrides=[override]),
            proof=_tried(case, changed),
        )
    if signs.sign == "skipped_steps":
        case.begin_at_scale(1.0)
    return None


def _of_culprits(case: LossCase, signs: FaultSigns, culprits: Culprits) -> OfOperator:
    """The finding of a fault that some modules or lines mend."""
    names = {_module_of(one) for one in culprits.kept}
    origins = [one for one in culprits.origins if one.call.module in names] or culprits.origins
    origin = origins[0] if origins else None
    cause = CoarseRounding if origin is None else cause_of(origin)
    modules = [one for one in culprits.kept if isinstance(one, str)]
    overrides, line = list[str](), cause.line
    if len(modules) == len(culprits.kept):
        overrides = [kept_in_float32(case.patient.config.precision, modules)]
    elif line is None:
        line = "with torch.autocast(x.device.type, enabled=False): ...  # on .float() tensors"
    return cause(
        signs=signs,
        modules=[one for one in map(_module_of, culprits.kept) if one is not None],
        operator=None if origin is None else origin.call.operator,
        place=None if origin is None else origin.call.place,
        origin=origin,
        mending=culprits.mending,
        change=Change(overrides=overrides, code=line),
        proof=_tried(case, Variant(kept=frozenset(culprits.kept), precision=case.precision)),
    )


def _without_autocast(case: LossCase, signs: FaultSigns) -> LossFinding:
    """The finding of a fault of a training whose parameters are in half precision."""
    patient, num_steps = case.patient, case.num_steps
    eps = patient.config.optimizer.get("eps")
    if patient.config.precision.parameters == "float16" and isinstance(eps, float) and eps < _LARGE_EPS:
        larger = Variant(optimizer={"eps": _LARGE_EPS})
        if case.mends(larger, num_steps):
            change = Change(overrides=[f"optimizer.eps={_LARGE_EPS!r}"])
            return OptimizerEps(signs=signs, eps=eps, change=change, proof=_tried(case, larger))
    if signs.sign not in NOT_FINITE:
        share = unchanged_share(patient, num_steps)
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
        origin=origins[0],
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


def _tried(case: LossCase, changed: Variant) -> TriedSteps:
    """Replay all steps with a change."""
    taken = changed.steps(case.patient, case.num_steps)
    return TriedSteps(mends=not case.has_fault(taken), num_steps=len(taken.steps))


def _module_of(kept: Kept) -> str | None:
    return kept.module if isinstance(kept, OwnCalls) else kept
