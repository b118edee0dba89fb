"""The end of a run: the last figures of its record, or the reason why it never trained."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from ampsweep.config.schema import PrecisionConfig
from ampsweep.data.base import num_workers
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.metrics import AUTOCAST_PENALTY, CLIPPED, GRAD_NORM
from ampsweep.precision.precision import unsupported_reason, why_emulated
from ampsweep.records import RecordError, RunRecord, now, read_history
from ampsweep.records.batch_search import LARGEST_BATCH
from ampsweep.records.outcome import OutOfMemory, Status
from ampsweep.records.sections import StepPrediction
from ampsweep.run.messages import Say
from ampsweep.run.request import RunRequest, new_record
from ampsweep.text import GIB, one_line
from ampsweep.tracking.tracker import Tracker, make_tracker
from ampsweep.training.components.device import RunDevice
from ampsweep.training.trainer import Trainer

_PREDICTED: Final = frozenset({"completed", "oom", "diverged"})  # statuses of runs that have trained


def add_figures_of_run(record: RunRecord, trainer: Trainer, directory: Path) -> None:
    """Add data workers, the batch size found by a search, the best evaluation, and the share of clipped steps in the
    whole history."""
    if (workers := num_workers(trainer.data)) is not None:
        record.environment["data_workers"] = workers
    search = record.batch_search
    if search is not None and record.status == "completed" and search.largest == record.identity.batch_size:
        record.summary[LARGEST_BATCH] = search.largest
    record.best = trainer.validation.best
    if record.best is not None and trainer.config.patience is not None:  # which the training was for
        record.summary |= record.best.values
    limits = trainer.max_norms
    if not any(limits) or trainer.config.max_grad_value is not None:
        return  # a row has the norms before clipping by value
    with suppress(RecordError):  # readers of the history get this error
        rows = [row for row in read_history(directory) if math.isfinite(row.get(GRAD_NORM, math.nan))]
        shares = [row.get(CLIPPED, 100 * (row[GRAD_NORM] > (limits[0] or math.inf))) for row in rows]
        if shares:
            record.summary[CLIPPED] = sum(shares) / len(shares)


def add_autocast_penalty(record: RunRecord, trainer: Trainer) -> None:
    """Evaluate once more, with or without autocast, and add the difference in loss, or why there is none."""
    if record.status != "completed":
        return
    try:
        penalty = trainer.autocast_penalty()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a model may need autocast, or have no memory for it
        record.absent[AUTOCAST_PENALTY] = f"the second evaluation failed: {one_line(error)}"
        return
    if penalty is None:
        return
    if math.isfinite(penalty):
        record.summary[AUTOCAST_PENALTY] = penalty
    else:
        record.absent[AUTOCAST_PENALTY] = "one of the two validation losses is not finite"


def add_prediction(record: RunRecord, request: RunRequest, device: torch.device) -> None:
    """Add the prediction of its step, and the errors, to the record of a run that has trained."""
    if not request.config.predict.with_runs or record.status not in _PREDICTED:
        return
    prediction, step = request.prediction, max(record.memory.step or 2, 2)
    varies = prediction is None or any(operator.doubt == "varies" for operator in prediction.unvouched or ())
    if varies and request.predictor is not None:
        prediction = request.predictor.load()(request.config, device, step)  # imported late, so that a start is quick
    if prediction is not None:
        record.prediction = _beside_measured(prediction, record)


def _beside_measured(prediction: StepPrediction, record: RunRecord) -> StepPrediction:
    """Add what was measured and the errors in percent; of a compiled run no bytes: the eager step's are predicted."""
    is_timed = prediction.step_ms is not None and record.contamination.verdict != "contaminated"
    measured_ms = record.summary.get("perf/step_ms") if is_timed else None
    predicted, measured = prediction.allocator_peak_bytes, None
    if record.identity.compile:
        predicted = None
    elif predicted is None:
        predicted, measured = prediction.peak_bytes, record.memory.peak_bytes
    elif (measured_gib := record.summary.get("memory/peak_allocated_gib")) is not None:
        measured = round(measured_gib * GIB)
    return replace(
        prediction,
        measured_ms=measured_ms,
        step_error_pct=_error_pct(prediction.step_ms, measured_ms),
        measured_bytes=None if predicted is None else measured or None,
        error_pct=_error_pct(predicted, measured),
    )


def _error_pct(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or not measured else 100 * (predicted - measured) / measured


def why_unsupported(precision: PrecisionConfig, device: torch.device, *, searches_batch: bool) -> str | None:
    """A sentence on why `device` cannot run these settings (in a search for the largest batch size), None if it can."""
    reason = unsupported_reason(precision, device)
    if reason is None and searches_batch and (emulated := why_emulated(precision, device)) is not None:
        return f"the largest batch of an emulation is not that of the mode: {emulated}"
    return reason


class UntrainedError(Exception):
    """Raised to end a run before its training, such as in a mode that its device does not support."""

    def __init__(self, status: Status, sentence: str, oom: OutOfMemory | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.oom = status, sentence, oom


def end_untrained(
    request: RunRequest, taken: RunDevice, ended: UntrainedError, send: Callable[[object], None]
) -> Status:
    """Record a run that ended before its training, and track it as finished."""
    record = new_record(
        request.config,
        device=str(taken),
        device_name=taken.name,
        batch_search=request.batch_search,
        world_size=request.config.parallel.num_processes or 1,
    )
    record.status, record.error, record.oom, record.ended_at = ended.status, ended.sentence, ended.oom, now()
    add_prediction(record, request, taken.device)
    request.write(record)
    tracker = tracker_of(request, send)
    try:
        tracker.start(record, request.directory, resume_after=None)
    finally:
        tracker.finish(record)
        request.write(record)
    return record.status


def tracker_of(request: RunRequest, send: Callable[[object], None], stop: StopRequest | None = None) -> Tracker:
    """Make the tracker of a run; it sends lines for the user and may request a stop."""
    return make_tracker(
        request.config.tracking,
        group=request.group,
        say=lambda text: send(Say(text)),
        wandb=request.wandb,
        on_stop=lambda reason: None if stop is None else stop.request(reason),
    )
