"""The examination of a loss: if precision spoils it, by what, and the smallest change that fixes it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, DoctorFinding, kept_in_float32, where
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.float32_edits import names_at, smallest_edit
from ampsweep.doctor.loss import findings as kinds
from ampsweep.doctor.loss.fault import NOT_FINITE, Accepted, FaultSigns, LossCase
from ampsweep.doctor.loss.findings import LossFinding, TriedSteps
from ampsweep.doctor.loss.needed_fp32_modules import calls_by_error, find_culprits, trace_fault
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigins
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.replay import OutOfTimeError
from ampsweep.doctor.state.half_integers import find_rounded_integers
from ampsweep.doctor.state.lost_updates import lost_updates
from ampsweep.observe.calls import Call, observe
from ampsweep.user_code import CodeLine, is_own_source, place_of_caller

AnyFinding = TypeVar("AnyFinding", bound=DoctorFinding)
_LARGE_EPS: Final = 2.0**-12  # the root of float16's smallest number: smaller gradients have a square of zero there
_MOST_LINES: Final = 8  # lines that are edited in turn


def examine_loss(examined: ExaminedTraining) -> Iterator[DoctorFinding]:
    if examined.is_baseline:
        return
    own, base = examined.own_steps, examined.baseline_steps
    examined.facts["loss/steps"] = [
        {"step": step.number, "own": step.loss, "baseline": exact.loss}
        for step, exact in zip(own.steps, base.steps, strict=False)
    ]
    if not base.steps:
        raise NotExaminedError(f"the first step in float32 ends with {type(base.error).__name__}")
    case = LossCase(examined)
    if case.fault is None:
        if (lost := lost_updates(examined)) is not None:
            yield lost
        return
    signs = case.fault
    if case.is_also_in_float32:
        yield kinds.NotPrecision(signs=signs)
        return
    try:
        if signs.sign in ("different_loss", "worse_loss"):
            rounded = find_rounded_integers(examined, case.is_fixed_by)
            if rounded is not None:
                yield replace(rounded, also=[signs.sentence])
                return
        find = _under_autocast if examined.config.precision.autocast else _without_autocast
        yield find(case, signs)
    except OutOfTimeError:
        yield kinds.Unsearched(signs=signs)


def _under_autocast(case: LossCase, signs: FaultSigns) -> DoctorFinding:
    precision = case.examined.config.precision
    if (scale := _of_scale(case, signs)) is not None:
        return scale
    off = replace(case.precision, autocast=False, dtype=precision.parameters, fp32_modules=[])
    switches = kinds.Switches(autocast_off_mends=case.is_fixed_by(Variant(precision=off)))
    if precision.dtype == "float16":
        switched = replace(case.precision, grad_scaler=not precision.grad_scaler)
        name = "scaler_off_mends" if precision.grad_scaler else "scaler_on_mends"
        switches = replace(switches, **{name: case.is_fixed_by(Variant(precision=switched))})
    if not switches.autocast_off_mends:
        return replace(_with_the_scaler(case, signs, switches), switches=switches)
    return replace(_in_float32(case, signs), switches=switches)


def _with_the_scaler(case: LossCase, signs: FaultSigns, switches: kinds.Switches) -> LossFinding:
    """The finding of a fault that autocast does not cause: of gradients that are changed while they are scaled."""
    changed = Variant(precision=replace(case.precision, grad_scaler=False))
    proof = _tried(case, changed) if switches.scaler_off_mends else None
    if proof is None or not proof.mends:
        return kinds.Unexplained(signs=signs)
    change = Change(overrides=["precision.grad_scaler=false"])
    return kinds.ChangedWhileScaled(signs=signs, place=_first_in_backward(case), change=change, proof=proof)


def _first_in_backward(case: LossCase) -> CodeLine | None:
    """The first line of the user's own code that runs in a backward pass, such as a hook's."""
    found: list[CodeLine] = []

    def on_call(call: Call, *_: object) -> None:
        line = place_of_caller() if call.phase == "backward" else None
        if line is not None and is_own_source(Path(line.file)):
            found.append(line)

    replay = Variant(precision=case.precision).replay(case.examined)
    with observe(replay.model, on_call, places=False):
        replay.step()
    return found[0] if found else None


def _in_float32(case: LossCase, signs: FaultSigns) -> LossFinding:
    """The finding with the smallest part of the step that must compute in float32: lines of the user's own code, where
    a module has others inside that need no float32, or else modules, which only autocast can keep in float32. Without
    either it is another precision mode that mends the loss."""
    traced = trace_fault(case)
    replay = Variant(precision=case.precision).replay(case.examined)
    containers = {name for name, module in replay.model.named_modules() if any(True for _ in module.children())}
    forward = [origin.call for origin in traced.found if origin.phase != "update"]
    is_leaf = bool(forward and forward[0].module and case.autocast) and forward[0].module not in containers
    by_error = calls_by_error(case)
    lines = forward if is_leaf else [*forward, *by_error]
    searches = [
        partial(_of_lines, case, signs, traced, lines, "close"),
        partial(_of_lines, case, signs, traced, lines, "equal"),
        partial(_of_modules, case, signs, traced, by_error, "equal"),
    ]
    searches = [*searches[2:], *searches[:2]] if is_leaf else searches
    if signs.sign in NOT_FINITE:
        searches += [partial(_of_lines, case, signs, traced, lines, "finite")]
        searches += [partial(_of_modules, case, signs, traced, by_error, "finite")]
    found = next((found for search in searches if (found := search()) is not None), None)
    if found is not None:
        return found
    case.accepted = "equal"
    if case.autocast:
        return _in_another_mode(case, kinds.WholeModel(signs=signs))
    if not traced.found:
        kind = kinds.Unexplained if signs.sign in NOT_FINITE else kinds.CoarseRounding
        return _in_another_mode(case, kind(signs=signs))
    origin = traced.found[0]
    return _in_another_mode(case, kinds.kind_of(origin)(signs=signs, origin=origin, **where(origin.call)))


def _of_lines(
    case: LossCase, signs: FaultSigns, traced: NonfiniteOrigins, calls: Sequence[Call], accepted: Accepted
) -> kinds.OfOperator | None:
    """The finding of a fault that an edit of the lines that made one of these calls mends."""
    assert case.fault is not None
    case.accepted = accepted

    def mends(edit: CodeEdit) -> bool:
        return case.is_fixed_by(Variant(edit=edit))

    lines: dict[CodeLine, Call] = {}
    for call in calls:
        if isinstance(call.place, CodeLine) and is_own_source(Path(call.place.file)):
            lines.setdefault(call.place, call)
    for line, call in islice(lines.items(), _MOST_LINES):
        names = names_at(Variant(precision=case.precision).replay(case.examined), line, case.fault.replayed)
        first = traced.found[0] if traced.found and signs.sign in NOT_FINITE else None
        origin = next((origin for origin in traced.found if origin.call.place == line), first)
        kind = kinds.CoarseRounding if origin is None else kinds.kind_of(origin)
        if names is None:
            continue
        edit = next(filter(mends, kind.edits(line, names)), None)
        edit = edit or smallest_edit(line, names, mends, autocast=case.autocast)
        proof = None if edit is None else _tried(case, Variant(edit=edit, precision=case.precision))
        if edit is not None and (proof is None or proof.mends):
            facts = where(call) if origin is None else where(origin.call) | {"modules": where(call)["modules"]}
            return kind(signs=signs, origin=origin, change=Change(code=edit.patch), proof=proof, **facts)
    return None


def _of_scale(case: LossCase, signs: FaultSigns) -> kinds.ScalerFault | None:
    """The finding of a fault that changing the scaler fixes; else let trials begin at a scale that shows it at once."""
    own, num_steps = case.examined.config.precision, case.num_steps
    if own.dtype != "float16":
        return None
    usual, is_finite = PrecisionConfig.init_scale, signs.sign not in NOT_FINITE
    kind: type[kinds.ScalerFault] | None = None
    if not own.grad_scaler and is_finite:
        kind, override = kinds.GradientsVanish, "precision.grad_scaler=true"
        changed = Variant(precision=replace(own, grad_scaler=True))
    elif own.grad_scaler and own.init_scale != usual and (is_finite or signs.sign == "skipped_steps"):
        kind, override = kinds.WrongScale, f"precision.init_scale={usual:g}"
        changed = Variant(precision=replace(own, init_scale=usual))
    if kind is not None and case.is_fixed_by(changed, num_steps):
        scale = own.init_scale if own.grad_scaler else None
        change = Change(overrides=[override])
        return kind(signs=signs, init_scale=scale, change=change, proof=_tried(case, changed))
    if signs.sign == "skipped_steps":
        case.begin_at_scale(1.0)
    return None


def _of_modules(
    case: LossCase, signs: FaultSigns, traced: NonfiniteOrigins, by_error: Sequence[Call], accepted: Accepted
) -> kinds.OfOperator | None:
    """The finding of the modules that must compute in float32, with all others in which the same line goes wrong."""
    case.accepted = accepted
    culprits = find_culprits(case, traced, by_error) if case.autocast else None
    if culprits is None:
        return None
    origins = [origin for origin in culprits.origins if origin.call.module in culprits.kept] or culprits.origins
    origin = origins[0] if origins else None
    kind = kinds.CoarseRounding if origin is None else kinds.kind_of(origin)
    places = {(own.call.place, own.call.operator) for own in origins}
    same = (own.call.module for own in culprits.origins if (own.call.place, own.call.operator) in places)
    modules = [*dict.fromkeys((*culprits.kept, *filter(None, same)))]
    proof = _tried(case, Variant(kept=frozenset(modules), precision=case.precision))
    if proof is not None and not proof.mends:
        return None
    return kind(
        signs=signs,
        modules=modules,
        operator=None if origin is None else origin.call.operator,
        place=None if origin is None else origin.call.place,
        origin=origin,
        mending=culprits.mending,
        change=Change(overrides=[kept_in_float32(case.examined.config.precision, modules)]),
        proof=proof,
    )


def _without_autocast(case: LossCase, signs: FaultSigns) -> DoctorFinding:
    examined, num_steps = case.examined, case.num_steps
    eps = examined.config.optimizer.get("eps")
    if examined.config.precision.parameters == "float16" and isinstance(eps, float) and eps < _LARGE_EPS:
        larger = Variant(optimizer={"eps": _LARGE_EPS})
        if case.is_fixed_by(larger, num_steps):
            change = Change(overrides=[f"optimizer.eps={_LARGE_EPS!r}"])
            return kinds.OptimizerEps(signs=signs, eps=eps, change=change, proof=_tried(case, larger))
    if signs.sign not in NOT_FINITE and (lost := lost_updates(examined)) is not None:
        return _in_another_mode(case, replace(lost, also=[signs.sentence]))
    return _in_float32(case, signs)


def _in_another_mode(case: LossCase, found: AnyFinding) -> AnyFinding:
    """The finding with the first other precision mode that fixes the fault, if there is one."""
    own, num_steps = case.examined.config.precision, case.num_steps
    of_finding = [override.removeprefix("precision=") for override in found.change.overrides]
    for mode in dict.fromkeys([*of_finding, f"amp_{'fp16' if own.dtype == 'float16' else 'bf16'}", "amp_bf16"]):
        changed = Variant(precision=PRECISION_MODES[mode])
        try:
            is_fixed = mode != own.mode and case.is_fixed_by(changed, num_steps)
        except OutOfTimeError:
            break
        if is_fixed:
            return replace(found, change=Change(overrides=[f"precision={mode}"]), proof=_tried(case, changed))
    return replace(found, change=Change(), proof=None)


def _tried(case: LossCase, changed: Variant) -> TriedSteps | None:
    try:
        taken = changed.steps(case.examined, case.num_steps)
    except OutOfTimeError:
        return None
    mends, is_equal = not case.has_fault(taken), case.judge.fault(taken.steps) is None
    return TriedSteps(mends=mends, is_equal=is_equal, num_steps=len(taken.steps))
