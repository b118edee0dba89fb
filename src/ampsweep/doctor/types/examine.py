"""The complaint `types`: an operator refuses the dtypes of its arguments, and the training stops with an error."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.float32_edits import own_function_edit, smallest_edit
from ampsweep.doctor.replay import OutOfTimeError, TakenStep
from ampsweep.doctor.running_code import limits_of_dtype
from ampsweep.doctor.types.failing_call import CallWatch, FailedCall
from ampsweep.doctor.types.findings import Stage, StopsWithError, TriedCasts
from ampsweep.text import one_line
from ampsweep.training.assembly import ShortValidation
from ampsweep.user_code import CodeLine, place_of

_MOST_CALLS: Final = 6  # the most calls that are fixed in sequence
_MOST_CASTS: Final = 3  # the most casts of a call's operands that are tried


def examine_types(examined: ExaminedTraining) -> list[StopsWithError]:
    """Find the calls that stop a training, and casts that fix it; NotExaminedError: it stops in float32, too."""
    if examined.is_baseline:
        return []
    own, baseline = examined.own_steps, examined.baseline_steps
    num_steps = min(1, len(own.steps)) if own.error is None else len(own.steps) + 1
    stopped = run_watched(examined, num_steps)
    if stopped.error is None:
        return []
    error = baseline.error if len(baseline.steps) < num_steps else None
    if own.error is None:
        error = run_watched(examined, num_steps, precision=PRECISION_MODES["fp32"]).error
    if error is not None:
        raise NotExaminedError(f"the training stops in float32, too: {one_line(error)}")
    change, outcome = Change(), None
    with suppress(OutOfTimeError):
        change, outcome = _edited(examined, num_steps, stopped) or _overridden(examined, num_steps, stopped)
    return [_finding(examined, stopped, change, outcome)]


@dataclass(frozen=True)
class WatchedSteps:
    error: Exception | None
    failed: FailedCall | None = None
    step: TakenStep | None = None  # the last completed step
    stage: Stage = "training"


_Tried = tuple[Change, WatchedSteps | None]


def run_watched(
    examined: ExaminedTraining,
    num_steps: int,
    edits: Iterable[CodeEdit] = (),
    precision: PrecisionConfig | None = None,
) -> WatchedSteps:
    """Take steps with the code edited, and evaluate on two batches."""
    stage: Stage = "building"
    step, watch = None, None
    with ExitStack() as edited:
        try:
            for edit in edits:
                edited.enter_context(edit.applied())
            replay = examined.replay(precision)
            watch = CallWatch(replay.device.type, replay.model, replay.trainer.optimizers.values())
            stage = "training"
            with watch.watching():
                for _ in range(num_steps):
                    for index in replay.next_batches:
                        watch.origins.name_batch(examined.data.train_batch(index))
                    step = replay.step()
                stage = "evaluation"
                replay.trainer.data = ShortValidation(replay.data)
                with replay.built.precision.flags():
                    replay.trainer.evaluate()
        except Exception as error:  # noqa: BLE001  the model's own code may raise anything
            return WatchedSteps(error, None if watch is None else watch.failure_of(error), step, stage)
    return WatchedSteps(None, step=step)


def _finding(
    examined: ExaminedTraining, stopped: WatchedSteps, change: Change, outcome: WatchedSteps | None
) -> StopsWithError:
    error, failed, stage, proof = stopped.error, stopped.failed, stopped.stage, None
    assert error is not None
    if outcome is not None and (step := outcome.step) is not None:
        losses = {step.number: step.loss for step in examined.baseline_steps.steps}
        proof = TriedCasts(mends=True, step=step.number, loss=step.loss, baseline_loss=losses.get(step.number))
    is_in_step = stopped.step is not None and stage == "training"
    facts: dict[str, Any] = {
        "step": (1 if stopped.step is None else stopped.step.number) + is_in_step,
        "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300].removesuffix('.')}",
        "change": change,
        "proof": proof,
    }
    if failed is None:
        return StopsWithError(**facts, stage=stage, operands=[], place=place_of(error))
    line = failed.identity.line or place_of(error)
    return failed.finding(**facts, place=line, stage=failed.phase if stage == "training" else stage)


def _edited(examined: ExaminedTraining, num_steps: int, outcome: WatchedSteps) -> _Tried | None:
    """Edits of the call that stops the training and of those that stop it next; None if it never runs."""
    edits = dict[str, CodeEdit]()  # by file
    for _ in range(_MOST_CALLS):
        elsewhere, failed = None, outcome.failed
        for edit in () if failed is None else _edits(examined, num_steps, failed, is_first=not edits):
            before = edits.get(edit.file, edit)
            tried = edits | {edit.file: replace(edit, old=before.old, words=None if edits else edit.words)}
            after = run_watched(examined, num_steps, tried.values())
            if after.error is None:
                words = next(iter(tried.values())).words
                return Change(code="\n".join(known.patch for known in tried.values()), words=words), after
            if after.failed is not None and failed is not None and after.failed.identity.line != failed.identity.line:
                elsewhere = elsewhere or (tried, after)
        if elsewhere is None:
            return None
        edits, outcome = elsewhere
    return None


def _edits(examined: ExaminedTraining, num_steps: int, failed: FailedCall, *, is_first: bool) -> Iterator[CodeEdit]:
    """Edits that may mend a failing call: of a function with a backward pass of its own, of a number that is too large,
    of the call's arguments, and of the lines around it."""
    autocast = examined.device.type if examined.config.precision.autocast else None
    line, names = failed.identity.line, failed.names
    if not isinstance(line, CodeLine) or names is None:
        return
    if autocast is not None and (wrapped := own_function_edit(line, names, autocast)) is not None:
        yield wrapped
    yield from limits_of_dtype(line, names)
    for words, edit in islice(failed.casts.items(), _MOST_CASTS):
        if edit is not None:
            yield replace(edit, words=words)
    if is_first:

        def mends(edit: CodeEdit) -> bool:
            return run_watched(examined, num_steps, [edit]).error is None

        if (around := smallest_edit(line, names, mends, autocast=autocast)) is not None:
            yield around


def _overridden(examined: ExaminedTraining, num_steps: int, stopped: WatchedSteps) -> _Tried:
    """Overrides with which the training runs unchanged: autocast instead of half-precision parameters, or its module in
    float32."""
    precision, module = examined.config.precision, stopped.failed and stopped.failed.module
    if not precision.autocast:
        name = {"bfloat16": "amp_bf16", "float16": "amp_fp16"}[precision.parameters]
        changed, override = PRECISION_MODES[name], f"precision={name}"
    elif module:
        changed = replace(precision, fp32_modules=[*precision.fp32_modules, module])
        override = kept_in_float32(precision, [module])
    else:
        return Change(), None
    outcome = run_watched(examined, num_steps, precision=changed)
    return (Change(overrides=[override]), outcome) if outcome.error is None else (Change(), None)
