"""The complaint of types: an operator gets dtypes that it does not take, and the training stops with an error."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.loss.findings import TriedSteps
from ampsweep.doctor.loss.variant import OwnCalls, Variant
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.doctor.replay import Replay, TakenStep
from ampsweep.doctor.types.failing_call import CallWatch, FailedCall, Remedy
from ampsweep.doctor.types.findings import (
    NumberTooLarge,
    RefusedLoss,
    StopsWithError,
    TriedCasts,
    TypesFinding,
    WrongDtypes,
)
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.functions import CallIdentity
from ampsweep.own_code import place_of
from ampsweep.text import one_line
from ampsweep.training.assembly import ShortValidation

_FROM_LOGITS: Final = "torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)"
"""The loss that autocast takes, as a line of Python."""
_MOST_CALLS: Final = 6
"""The most calls that are mended one after another."""
_MOST_REMEDIES: Final = 3
"""The most remedies of one call that are tried."""

_Remedies = Sequence[tuple[CallIdentity, Remedy]]


def examine_types(patient: Patient) -> list[TypesFinding]:
    """Find the calls that stop a training although it runs in float32, and the casts with which it goes on.

    Raises:
        NotExaminedError: it stops in float32, too.
    """
    if patient.is_baseline:
        return []
    own, baseline = patient.own_steps, patient.baseline_steps
    num_steps = min(1, len(own.steps)) if own.error is None else len(own.steps) + 1
    if own.error is None and run_watched(patient, num_steps).error is None:
        return []
    error = baseline.error if len(baseline.steps) < num_steps else None
    if own.error is None:
        error = run_watched(patient, num_steps, precision=PRECISION_MODES["fp32"]).error
    if error is not None:
        raise NotExaminedError(f"the training stops in float32, too: {one_line(error)}")
    return _findings(patient, num_steps)


@dataclass(frozen=True)
class WatchedSteps:
    """The end of a replay."""

    error: Exception | None
    failed: FailedCall | None = None
    step: TakenStep | None = None
    """The last step that was taken."""
    stage: str = "training"
    cast_in: dict[CallIdentity, list[str | None]] | None = None
    module: str | None = None
    """The innermost module from whose code the error comes, if it comes from one."""

    @property
    def told_error(self) -> str:
        """The error as findings tell it."""
        return f"{type(self.error).__name__}: {' '.join(str(self.error).split())[:300].removesuffix('.')}"

    @property
    def stops_in(self) -> int:
        """The step in which it stops, or after which."""
        return 1 if self.step is None else self.step.number + (self.stage == "training")


def run_watched(
    patient: Patient, num_steps: int, remedies: _Remedies = (), precision: PrecisionConfig | None = None
) -> WatchedSteps:
    """Take steps with some operands cast, and evaluate on two batches."""
    try:
        replay = patient.replay(precision)
    except Exception as error:  # noqa: BLE001  the model's own code may raise anything
        return WatchedSteps(error, stage="building")
    watch, step, stage = CallWatch(replay, remedies), None, "training"
    try:
        with watch.watching():
            for _ in range(num_steps):
                for index in replay.next_batches:
                    watch.origins.name_batch(index, patient.data.train_batch(index))
                step = replay.step()
            stage = "evaluation"
            replay.trainer.data = ShortValidation(replay.data)
            with replay.built.precision.flags():
                replay.trainer.evaluate()
    except Exception as error:  # noqa: BLE001  as above
        failed, module = watch.failure_of(error), _raised_in(error, replay)
        return WatchedSteps(error, failed, step, stage, watch.cast_in, module)
    return WatchedSteps(None, step=step, cast_in=watch.cast_in)


def _raised_in(error: Exception, replay: Replay) -> str | None:
    """The name of the innermost module among those whose methods the error has left."""
    names = {module: name for name, module in replay.model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [names[owner] for owner in owners if isinstance(owner, nn.Module) and owner in names]
    return found[-1] if found else None


def _findings(patient: Patient, num_steps: int) -> list[TypesFinding]:
    """Mend one call after another until the training goes on, or stops for another reason."""
    mended: list[tuple[WatchedSteps, int]] = []
    remedies: _Remedies = []
    outcome = run_watched(patient, num_steps, remedies)
    while outcome.failed is not None and outcome.failed.fault is not None and len(mended) < _MOST_CALLS:
        if any(identity == outcome.failed.identity for identity, _ in remedies) or patient.seconds_left < 0:
            break
        number, after = _best(patient, num_steps, remedies, outcome.failed)
        remedies = [*remedies, (outcome.failed.identity, outcome.failed.remedies[number])]
        mended.append((outcome, number))
        outcome = after
    other = _other_precision(patient, num_steps)
    findings: list[TypesFinding] = [_mismatch(patient, one, number, outcome, other) for one, number in mended]
    if outcome.error is not None:
        findings.append(_stop(patient, num_steps, outcome, other))
    return findings


def _best(patient: Patient, num_steps: int, remedies: _Remedies, failed: FailedCall) -> tuple[int, WatchedSteps]:
    """The number of the first remedy with which the training goes on; else of the first of all."""
    first: WatchedSteps | None = None
    for number, remedy in enumerate(failed.remedies[:_MOST_REMEDIES]):
        outcome = run_watched(patient, num_steps, [*remedies, (failed.identity, remedy)])
        if outcome.error is None:
            return number, outcome
        first = first or outcome
        if patient.seconds_left < 0:
            break
    assert first is not None
    return 0, first


def _other_precision(patient: Patient, num_steps: int) -> list[str]:
    """Overrides with which the training runs as it is: autocast in place of half-precision parameters."""
    precision = patient.config.precision
    if precision.autocast:
        return []
    name = {"bfloat16": "amp_bf16", "float16": "amp_fp16"}[precision.parameters]
    other = run_watched(patient, num_steps, precision=PRECISION_MODES[name])
    return [f"precision={name}"] if other.error is None else []


def _mismatch(patient: Patient, stopped: WatchedSteps, number: int, end: WatchedSteps, other: list[str]) -> WrongDtypes:
    failed = stopped.failed
    assert failed is not None
    assert failed.fault is not None
    remedy = failed.remedies[number]
    changed = [one for one in failed.operands if one.place in remedy]
    partners = [one for one in failed.operands if one.place not in remedy and one.torch_dtype in remedy.values()]
    named = [*changed[:1], *(partners or [one for one in failed.operands if one.place not in remedy])[:1]]
    modules = [*dict.fromkeys([failed.module, *(end.cast_in or {}).get(failed.identity, [])])]
    code = failed.codes[number]
    overrides, code = ([], code) if code is not None else _without_source(patient, failed, remedy, other)
    return failed.fault(
        modules=[one for one in modules if one is not None],
        operator=failed.operator,
        place=failed.identity.line,
        error=stopped.told_error,
        stage=stopped.stage,
        step=stopped.stops_in,
        function=failed.identity.function,
        phase=failed.phase,
        num_modules=len(modules),
        operands=named,
        number=next(iter(failed.numbers.values())) if failed.fault is NumberTooLarge else None,
        cast=" and ".join(one.argument for one in changed),
        cast_to=", ".join(dict.fromkeys(dtype_name(value) for value in remedy.values())),
        runs_with=[] if overrides else other,
        change=Change(overrides=overrides, code=code),
        proof=_tried(patient, end),
    )


def _without_source(
    patient: Patient, failed: FailedCall, remedy: Remedy, other: list[str]
) -> tuple[list[str], str | None]:
    """A change where the call is not in a line of Python that could be rewritten: overrides that mend it, or a cast."""
    if other:
        return other, None
    precision = patient.config.precision
    if precision.autocast and failed.module:
        kept = replace(precision, fp32_modules=[*precision.fp32_modules, failed.module])
        if run_watched(patient, 1, precision=kept).error is None:
            return [kept_in_float32(precision, [failed.module])], None
    names = {one.place: one.source or one.argument for one in failed.operands}
    casts = [f"{names.get(place, 'value')}.to({value})" for place, value in remedy.items()]
    return [], f"{failed.identity.function}: {', '.join(casts)}"


def _stop(patient: Patient, num_steps: int, outcome: WatchedSteps, other: list[str]) -> StopsWithError | RefusedLoss:
    """The finding of an error that no cast mends."""
    failed, error, precision = outcome.failed, outcome.error, patient.config.precision
    assert error is not None
    module = outcome.module if failed is None else failed.module
    facts: dict[str, Any] = {
        "modules": [] if module is None else [module],
        "operator": None if failed is None else failed.operator,
        "place": place_of(error) if failed is None or failed.identity.line is None else failed.identity.line,
        "error": outcome.told_error,
        "stage": outcome.stage,
        "step": outcome.stops_in,
        "runs_with": other,
    }
    if failed is not None and precision.autocast:
        kept = failed.module or OwnCalls(failed.module)
        taken = Variant(kept=frozenset({kept})).steps(patient, num_steps)
        if taken.error is None:
            overrides = [kept_in_float32(precision, [failed.module])] if failed.module else []
            proof = TriedSteps(mends=True, num_steps=len(taken.steps))
            return RefusedLoss(**facts, change=Change(overrides=overrides, code=_FROM_LOGITS), proof=proof)
    dtypes = [] if failed is None else [*dict.fromkeys(one.dtype for one in failed.operands)]
    return StopsWithError(**facts, dtypes=dtypes, change=Change(overrides=other))


def _tried(patient: Patient, end: WatchedSteps) -> TriedCasts:
    """The end of the replay with all casts applied."""
    if end.error is not None:
        return TriedCasts(mends=False, next_error=end.told_error)
    assert end.step is not None
    number, baseline = end.step.number, patient.baseline_steps.steps
    baseline_loss = baseline[number - 1].loss if len(baseline) >= number else None
    return TriedCasts(mends=True, step=number, loss=end.step.loss, baseline_loss=baseline_loss)
