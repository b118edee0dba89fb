"""The complaint `types`: an operator refuses the dtypes of its arguments, and the training stops with an error."""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.float32_edits import own_function_edit, smallest_edit
from ampsweep.doctor.replay import OutOfTimeError, Replay, TakenStep
from ampsweep.doctor.types import findings as kinds
from ampsweep.doctor.types.failing_call import CallWatch, FailedCall
from ampsweep.doctor.types.findings import TypesFinding
from ampsweep.text import one_line
from ampsweep.training.assembly import ShortValidation
from ampsweep.user_code import CodeLine, place_of

_MOST_CALLS: Final = 6  # the most calls that are fixed in sequence
_MOST_REMEDIES: Final = 3  # the most remedies of a call that are tried


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
    return [_finding(examined, num_steps)]


@dataclass(frozen=True)
class WatchedSteps:
    error: Exception | None
    failed: FailedCall | None = None
    step: TakenStep | None = None  # the last completed step
    stage: str = "training"
    module: str | None = None  # the innermost module whose code raised the error, if any did

    @property
    def error_text(self) -> str:
        return f"{type(self.error).__name__}: {' '.join(str(self.error).split())[:300].removesuffix('.')}"

    @property
    def stops_in(self) -> int:
        """The step during or after which it stops."""
        return 1 if self.step is None else self.step.number + (self.stage == "training")


def run_watched(
    examined: ExaminedTraining,
    num_steps: int,
    edits: Iterable[CodeEdit] = (),
    precision: PrecisionConfig | None = None,
) -> WatchedSteps:
    """Take steps with the code edited, and evaluate on two batches."""
    step, stage, watch, replay = None, "building", None, None
    with ExitStack() as edited:
        try:
            for edit in edits:
                edited.enter_context(edit.applied())
            replay = examined.replay(precision)
            optimizers, dtype = replay.trainer.optimizers.values(), replay.built.precision.parameters_dtype
            watch, stage = CallWatch(replay.device.type, replay.model, optimizers, dtype), "training"
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
            if watch is None or replay is None:
                return WatchedSteps(error, stage=stage)
            return WatchedSteps(error, watch.failure_of(error), step, stage, _raised_in(error, replay))
    return WatchedSteps(None, step=step)


def _raised_in(error: Exception, replay: Replay) -> str | None:
    names = {module: name for name, module in replay.model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [names[owner] for owner in owners if isinstance(owner, nn.Module) and owner in names]
    return found[-1] if found else None


def _finding(examined: ExaminedTraining, num_steps: int) -> TypesFinding:
    """The call that stops the training, and the change with which it runs: of code, or else by overrides."""
    stopped = run_watched(examined, num_steps)
    found, by_override = None, None
    with suppress(OutOfTimeError):
        found = _edited(examined, num_steps, stopped)
        by_override = _overridden(examined, num_steps, stopped)
    change, number, others, proof = Change(), 0, list[str](), None
    if found is not None:
        words = next((edit.words for edit in found.edits.values() if edit.words), None)
        change = Change(code="\n".join(edit.patch for edit in found.edits.values()), words=words)
        number, others, proof = found.number, found.others, _tried(examined, found.outcome)
    elif by_override is not None:
        change, proof = Change(overrides=by_override[0]), _tried(examined, by_override[1])
    is_other_mode = found is not None and by_override is not None and not examined.config.precision.autocast
    failed = stopped.failed
    facts: dict[str, Any] = {
        "error": stopped.error_text,
        "stage": stopped.stage,
        "step": stopped.stops_in,
        "runs_with": by_override[0] if by_override is not None and is_other_mode else [],
        "change": change,
        "proof": proof,
    }
    if failed is not None and failed.fault is not None:
        return failed.finding(number, others=others, **facts)
    assert stopped.error is not None
    module = stopped.module if failed is None else failed.module
    facts |= {"modules": [] if module is None else [module], "operator": None if failed is None else failed.operator}
    facts["place"] = (None if failed is None else failed.identity.line) or place_of(stopped.error)
    if failed is not None and proof is not None and examined.config.precision.autocast:
        return kinds.RefusedLoss(**facts)
    dtypes = [] if failed is None else [*dict.fromkeys(operand.dtype for operand in failed.operands)]
    return kinds.StopsWithError(**facts, dtypes=dtypes)


@dataclass(frozen=True)
class _Edited:
    edits: dict[str, CodeEdit]  # by file
    outcome: WatchedSteps
    number: int  # of the remedy of the first call
    others: list[str]  # lines of the calls that stop it next


def _edited(examined: ExaminedTraining, num_steps: int, stopped: WatchedSteps) -> _Edited | None:
    """Edits of the call that stops the training and of those that stop it next; None if it never runs."""
    known = _Edited({}, stopped, 0, [])
    for _ in range(_MOST_CALLS):
        found = None if known.outcome.failed is None else _next_edit(examined, num_steps, known, known.outcome.failed)
        if found is None or found.outcome.error is None:
            return found
        known = found
    return None


def _next_edit(examined: ExaminedTraining, num_steps: int, known: _Edited, failed: FailedCall) -> _Edited | None:
    """Add the edit with which the training runs, or else the first with which it stops elsewhere."""
    elsewhere = None
    for number, edit in _edits(examined, num_steps, known, failed):
        before = known.edits.get(edit.file)
        edits = known.edits | {edit.file: edit if before is None else replace(edit, old=before.old)}
        outcome = run_watched(examined, num_steps, edits.values())
        others = (
            [] if known.outcome.failed is failed and not known.edits else [*known.others, str(failed.identity.line)]
        )
        found = _Edited(edits, outcome, number if not known.edits else known.number, others)
        if outcome.error is None:
            return found
        is_elsewhere = outcome.failed is not None and outcome.failed.identity.line != failed.identity.line
        elsewhere = elsewhere or (found if is_elsewhere else None)
    return elsewhere


def _edits(
    examined: ExaminedTraining, num_steps: int, known: _Edited, failed: FailedCall
) -> Iterator[tuple[int, CodeEdit]]:
    """Edits that may mend a failing call, each with the number of its remedy: of a function with a backward pass of its
    own, of the call's arguments, and of the lines around it."""
    autocast = examined.device.type if examined.config.precision.autocast else None
    line, names = failed.identity.line, failed.names
    if not isinstance(line, CodeLine) or names is None:
        return
    if autocast is not None and (wrapped := own_function_edit(line, names, autocast)) is not None:
        yield 0, wrapped
    yield from ((number, edit) for number, edit in enumerate(failed.edits[:_MOST_REMEDIES]) if edit is not None)
    if not known.edits:

        def mends(edit: CodeEdit) -> bool:
            return run_watched(examined, num_steps, [edit]).error is None

        if (around := smallest_edit(line, names, mends, autocast=autocast)) is not None:
            yield 0, around


def _overridden(
    examined: ExaminedTraining, num_steps: int, stopped: WatchedSteps
) -> tuple[list[str], WatchedSteps] | None:
    """Overrides with which the training runs unchanged: autocast instead of half-precision parameters, or its module in
    float32."""
    precision, module = examined.config.precision, stopped.failed and stopped.failed.module
    if precision.autocast:
        changed = replace(precision, fp32_modules=[*precision.fp32_modules, module or ""])
        overrides = kept_in_float32(precision, [module]) if module else None
    else:
        name = {"bfloat16": "amp_bf16", "float16": "amp_fp16"}[precision.parameters]
        changed, overrides = PRECISION_MODES[name], f"precision={name}"
    outcome = None if overrides is None else run_watched(examined, num_steps, precision=changed)
    return None if outcome is None or outcome.error is not None else ([overrides or ""], outcome)


def _tried(examined: ExaminedTraining, end: WatchedSteps) -> kinds.TriedCasts:
    assert end.step is not None
    number, baseline = end.step.number, examined.baseline_steps.steps
    baseline_loss = baseline[number - 1].loss if len(baseline) >= number else None
    return kinds.TriedCasts(mends=True, step=number, loss=end.step.loss, baseline_loss=baseline_loss)
