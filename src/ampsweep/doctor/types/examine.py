"""The complaint `types`: an operator refuses the dtypes of its arguments, and the training stops with an error."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.loss.findings import TriedSteps
from ampsweep.doctor.loss.variant import OwnCalls, Variant
from ampsweep.doctor.replay import Replay, TakenStep
from ampsweep.doctor.types import findings as kinds
from ampsweep.doctor.types.failing_call import CallWatch, FailedCall, Remedy
from ampsweep.doctor.types.findings import TypesFinding
from ampsweep.observe.functions import CallIdentity
from ampsweep.text import one_line
from ampsweep.training.assembly import ShortValidation
from ampsweep.user_code import place_of

_FROM_LOGITS: Final = "torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)"
_MOST_CALLS: Final = 6  # the most calls that are fixed in sequence
_MOST_REMEDIES: Final = 3  # the most remedies of a call that are tried

_Remedies = Sequence[tuple[CallIdentity, Remedy]]


def examine_types(examined: ExaminedTraining) -> list[TypesFinding]:
    """Find the calls that stop a training, and casts that fix it; NotExaminedError: it stops in float32, too."""
    if examined.is_baseline:
        return []
    own, baseline = examined.own_steps, examined.baseline_steps
    num_steps = min(1, len(own.steps)) if own.error is None else len(own.steps) + 1
    if own.error is None and run_watched(examined, num_steps).error is None:
        return []
    error = baseline.error if len(baseline.steps) < num_steps else None
    if own.error is None:
        error = run_watched(examined, num_steps, precision=PRECISION_MODES["fp32"]).error
    if error is not None:
        raise NotExaminedError(f"the training stops in float32, too: {one_line(error)}")
    return _findings(examined, num_steps)


@dataclass(frozen=True)
class WatchedSteps:
    error: Exception | None
    failed: FailedCall | None = None
    step: TakenStep | None = None  # the last completed step
    stage: str = "training"
    cast_in: dict[CallIdentity, list[str | None]] | None = None
    module: str | None = None  # the innermost module whose code raised the error, if any did

    @property
    def error_text(self) -> str:
        return f"{type(self.error).__name__}: {' '.join(str(self.error).split())[:300].removesuffix('.')}"

    @property
    def stops_in(self) -> int:
        """The step during or after which it stops."""
        return 1 if self.step is None else self.step.number + (self.stage == "training")


def run_watched(
    examined: ExaminedTraining, num_steps: int, remedies: _Remedies = (), precision: PrecisionConfig | None = None
) -> WatchedSteps:
    """Take steps with some operands cast, and evaluate on two batches."""
    try:
        replay = examined.replay(precision)
    except Exception as error:  # noqa: BLE001  the model's own code may raise anything
        return WatchedSteps(error, stage="building")
    optimizers, dtype = replay.trainer.optimizers.values(), replay.built.precision.parameters_dtype
    watch, step, stage = CallWatch(replay.device.type, replay.model, optimizers, remedies, dtype), None, "training"
    try:
        with watch.watching():
            for _ in range(num_steps):
                for index in replay.next_batches:
                    watch.origins.name_batch(examined.data.train_batch(index))
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
    names = {module: name for name, module in replay.model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [names[owner] for owner in owners if isinstance(owner, nn.Module) and owner in names]
    return found[-1] if found else None


def _findings(examined: ExaminedTraining, num_steps: int) -> list[TypesFinding]:
    fixed: list[tuple[WatchedSteps, int]] = []
    remedies: _Remedies = []
    outcome = run_watched(examined, num_steps, remedies)
    while outcome.failed is not None and outcome.failed.fault is not None and len(fixed) < _MOST_CALLS:
        if any(identity == outcome.failed.identity for identity, _ in remedies) or examined.seconds_left < 0:
            break
        number, after = _best(examined, num_steps, remedies, outcome.failed)
        remedies = [*remedies, (outcome.failed.identity, outcome.failed.remedies[number])]
        fixed.append((outcome, number))
        outcome = after
    other = _other_precision(examined, num_steps)
    findings: list[TypesFinding] = [_mismatch(examined, stopped, number, outcome, other) for stopped, number in fixed]
    if outcome.error is not None:
        findings.append(_stop(examined, num_steps, outcome, other))
    return findings


def _best(examined: ExaminedTraining, num_steps: int, fixes: _Remedies, failed: FailedCall) -> tuple[int, WatchedSteps]:
    """The number of the first remedy with which the training runs (else of the first of all), and how it then ends."""
    first: WatchedSteps | None = None
    for number, remedy in enumerate(failed.remedies[:_MOST_REMEDIES]):
        outcome = run_watched(examined, num_steps, [*fixes, (failed.identity, remedy)])
        if outcome.error is None:
            return number, outcome
        first = first or outcome
        if examined.seconds_left < 0:
            break
    assert first is not None
    return 0, first


def _other_precision(examined: ExaminedTraining, num_steps: int) -> list[str]:
    """Overrides with which the training runs unchanged: autocast instead of half-precision parameters."""
    precision = examined.config.precision
    if precision.autocast:
        return []
    name = {"bfloat16": "amp_bf16", "float16": "amp_fp16"}[precision.parameters]
    other = run_watched(examined, num_steps, precision=PRECISION_MODES[name])
    return [f"precision={name}"] if other.error is None else []


def _mismatch(
    examined: ExaminedTraining, stopped: WatchedSteps, number: int, end: WatchedSteps, other: list[str]
) -> kinds.WrongDtypes:
    failed = stopped.failed
    assert failed is not None
    modules = [*dict.fromkeys([failed.module, *(end.cast_in or {}).get(failed.identity, [])])]
    overrides = _overrides(examined, failed, other)
    return failed.finding(
        number,
        modules=[module for module in modules if module is not None],
        error=stopped.error_text,
        stage=stopped.stage,
        step=stopped.stops_in,
        num_modules=len(modules),
        runs_with=[] if overrides else other,
        change=Change(overrides=overrides, code=None if overrides else failed.codes[number]),
        proof=_tried(examined, end),
    )


def _overrides(examined: ExaminedTraining, failed: FailedCall, other: list[str]) -> list[str]:
    """The overrides that fix a call by no line of the training's code; empty for others, which a cast there fixes."""
    precision = examined.config.precision
    if failed.identity.instruction is not None:
        return []
    if not other and precision.autocast and failed.module:
        kept = replace(precision, fp32_modules=[*precision.fp32_modules, failed.module])
        if run_watched(examined, 1, precision=kept).error is None:
            return [kept_in_float32(precision, [failed.module])]
    return other


def _stop(examined: ExaminedTraining, num_steps: int, outcome: WatchedSteps, other: list[str]) -> TypesFinding:
    failed, error, precision = outcome.failed, outcome.error, examined.config.precision
    assert error is not None
    module = outcome.module if failed is None else failed.module
    facts: dict[str, Any] = {
        "modules": [] if module is None else [module],
        "operator": None if failed is None else failed.operator,
        "place": place_of(error) if failed is None or failed.identity.line is None else failed.identity.line,
        "error": outcome.error_text,
        "stage": outcome.stage,
        "step": outcome.stops_in,
        "runs_with": other,
    }
    if failed is not None and precision.autocast:
        kept = failed.module or OwnCalls(failed.module)
        taken = Variant(kept=frozenset({kept})).steps(examined, num_steps)
        if taken.error is None:
            overrides = [kept_in_float32(precision, [failed.module])] if failed.module else []
            proof = TriedSteps(mends=True, num_steps=len(taken.steps))
            return kinds.RefusedLoss(**facts, change=Change(overrides=overrides, code=_FROM_LOGITS), proof=proof)
    dtypes = [] if failed is None else [*dict.fromkeys(operand.dtype for operand in failed.operands)]
    return kinds.StopsWithError(**facts, dtypes=dtypes, change=Change(overrides=other))


def _tried(examined: ExaminedTraining, end: WatchedSteps) -> kinds.TriedCasts:
    if end.error is not None:
        return kinds.TriedCasts(mends=False, next_error=end.error_text)
    assert end.step is not None
    number, baseline = end.step.number, examined.baseline_steps.steps
    baseline_loss = baseline[number - 1].loss if len(baseline) >= number else None
    return kinds.TriedCasts(mends=True, step=number, loss=end.step.loss, baseline_loss=baseline_loss)
