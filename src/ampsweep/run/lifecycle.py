"""The lifecycle of one run, from config to record: build, train, record."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.errors import UnsupportedError
from ampsweep.config.identity import code_version, training_hash
from ampsweep.config.modes import arm_after, arm_of
from ampsweep.config.schema import COMPONENTS, component_name
from ampsweep.data.base import Data, stop_workers
from ampsweep.launch.garbage_collection import collect_new_garbage_only
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.launch.slurm import own_job
from ampsweep.launch.watchdog import Watchdog
from ampsweep.metrics import STEP
from ampsweep.monitors.contamination import UseBeforeRun
from ampsweep.monitors.environment import environment
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits
from ampsweep.records import (
    CHECKPOINTS,
    FILE_NAME,
    HISTORY_NAME,
    LAST,
    NO_ROOM,
    PREVIOUS,
    RunRecord,
    directory_of,
    now,
    record_beside,
    remove_leftovers,
    repair_history,
)
from ampsweep.records.outcome import OutOfMemory, Status
from ampsweep.records.sections import Attempt
from ampsweep.run.ending import (
    UntrainedError,
    add_autocast_penalty,
    add_figures_of_run,
    add_prediction,
    end_untrained,
    tracker_of,
    why_unsupported,
)
from ampsweep.run.error_outcome import classify_error, end_stuck, error_of
from ampsweep.run.failure import ERROR_NAME
from ampsweep.run.messages import Progress, Say
from ampsweep.run.request import RunRequest, new_record, trained_meanwhile
from ampsweep.standard_streams import OUTPUT_NAME, copied_output
from ampsweep.tracking.wandb.agent import is_stopped_by_sweep, settle_stop
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.checkpoint import require_same_model
from ampsweep.training.components.built import Built, build, build_data
from ampsweep.training.components.device import RunDevice, taken_device
from ampsweep.training.components.optimizer import is_fused, learning_rate
from ampsweep.training.found_checkpoint import find_checkpoint, set_aside
from ampsweep.training.resume import keep_weights, resume, take_checkpoint
from ampsweep.training.trainer import Trainer
from ampsweep.user_code import own_code

Send = Callable[[object], None]

_PROGRESS_EVERY_S = 0.2  # least time between two progress messages: one may take as long as a step

_CHECKPOINTS: Final = tuple(Path(CHECKPOINTS) / name for name in (LAST, PREVIOUS, "final.pt", "best.pt"))
_REPLACED: Final[tuple[str | Path, ...]] = (FILE_NAME, HISTORY_NAME, *_CHECKPOINTS, *map(directory_of, _CHECKPOINTS))
"""Files and directories that a run replaces; a kill may leave their temporary versions."""

_WATCHED: Final = "under trainer.memory_limit_gib on a CPU every operator is watched, which slows it down"
BUILDING_GRACES: Final = 10  # grace periods for building a run, since a data set may be slow


@dataclass(frozen=True)
class PreparedRun:
    """A run whose device is locked, with the facts known before it is built."""

    taken: RunDevice
    limit: MemoryLimit
    use_before_run: UseBeforeRun
    unsupported: str | None = None  # the reason why the device cannot do the precision mode, if so
    data: Data | None = None  # on its device, if already built
    oom: OutOfMemory | None = None  # if memory ran out while the data was built
    parallel: Parallel = SINGLE


def run_once(request: RunRequest, *, send: Send, stop: StopRequest) -> Status:
    """Train in this process, from config to record and history; raises the error of a failed run once recorded."""
    config = request.config
    with taken_device(config.device, lambda text: send(Say(text)), stop) as taken:
        if (status := trained_meanwhile(request)) is not None:
            return status
        device, search = taken.device, request.batch_search
        unsupported = why_unsupported(config.precision, device, searches_batch=search is not None)
        # On a CPU the limit slows a run; the search has already kept this batch size to it.
        is_proved = search is not None and search.largest == config.data["batch_size"]
        limit_gib = None if is_proved and device.type == "cpu" else config.trainer.memory_limit_gib
        prepared = PreparedRun(taken, MemoryLimit(device, limit_gib), UseBeforeRun(device), unsupported)
        return run_prepared(request, prepared, send=send, stop=stop)


def run_prepared(request: RunRequest, prepared: PreparedRun, *, send: Send, stop: StopRequest) -> Status:
    watchdog = Watchdog(
        request.config.trainer.max_seconds,
        request.config.trainer.grace_seconds,
        interrupt=stop.interrupt,
        on_stuck=lambda sentence: end_stuck(request, prepared.parallel, sentence),
        stacks=request.directory / ERROR_NAME,
    )
    is_kept = request.is_recorded and request.config.tracking.console
    with copied_output(request.directory / OUTPUT_NAME) if is_kept else nullcontext():
        try:
            trainer = _built_trainer(request, prepared, send, stop, watchdog)
        except UntrainedError as ended:
            return end_untrained(request, prepared.taken, ended, send)
        return _train(trainer, request, prepared, send, stop, watchdog)


def _built_trainer(
    request: RunRequest, prepared: PreparedRun, send: Send, stop: StopRequest, watchdog: Watchdog
) -> Trainer:
    """Build the run; UntrainedError: unsupported or out of memory; any other error is recorded, then raised."""
    if prepared.unsupported is not None:
        raise UntrainedError("unsupported", prepared.unsupported)
    if prepared.oom is not None:
        raise UntrainedError("oom", prepared.oom.sentence, prepared.oom)
    config, device, parallel = request.config, prepared.taken.device, prepared.parallel
    try:
        with watchdog.over(lambda: "building the run", BUILDING_GRACES):
            with prepared.limit:
                data = build_data(config, device) if prepared.data is None else prepared.data
                built = build(config, device, data, parallel)
            record = _begin_record(request, built, prepared.taken)
            with prepared.limit:  # counts what a training keeps beside its model, as in a search
                return _trainer(request, built, record, send, stop, watchdog)
    except UnsupportedError as error:
        raise UntrainedError("unsupported", str(error)) from error
    except (Exception, SystemExit) as error:  # of the user's own code
        fault = classify_error(error, parallel, device, prepared.limit)
        if fault.status == "oom":
            raise UntrainedError("oom", fault.sentence, fault.oom) from error
        with suppress(OSError):  # no room, or the directory was deleted
            end_untrained(request, prepared.taken, UntrainedError("failed", fault.sentence), send)
        raise error_of(fault, error, parallel) from error


def _train(
    trainer: Trainer, request: RunRequest, prepared: PreparedRun, send: Send, stop: StopRequest, watchdog: Watchdog
) -> Status:
    recorder, limit, parallel, is_broken = trainer.recorder, prepared.limit, trainer.parallel, False
    record = recorder.record
    if request.is_recorded:
        remove_leftovers(*(request.directory / name for name in _REPLACED))
    busy = prepared.use_before_run.sentence()  # it may wait; before W&B's process uses the CPU
    alone = [] if busy is None or request.in_sweep else [busy]  # a sweep says once what its runs saw
    for warning in (*alone, *contradictions(request.config.precision, record.proof)):
        send(Say(f"{record.arm}: {warning}"))
    try:
        _continue(trainer, request, record, send)
        recorder.begin(resume_after=None if request.checkpoint is None else trainer.step)
        collect_new_garbage_only()
        send(_progress(trainer))
        with limit, trainer.instruments, watchdog.over(lambda: f"step {trainer.step}"):
            recorder.conclude(trainer.train(stop))
    except (Exception, SystemExit) as error:  # of the user's own code, too
        fault = classify_error(error, parallel, prepared.taken.device, limit, trainer)
        recorder.fail(fault.status, fault.sentence, fault.oom)
        is_broken = True
        if fault.status == "failed":
            raise error_of(fault, error, parallel) from error
    finally:
        stop_workers(trainer.data)
        recorder.end(busy, slowed_by=_WATCHED if limit.slows else None, exchanges=not is_broken)
        add_figures_of_run(record, trainer, request.directory)
        if stop.requested and record.attempts and not is_broken:
            record.attempts[-1].stopped_by = stop.reason
            record.wandb.stopped = is_stopped_by_sweep(stop.reason) or None
        try:
            recorder.write()
            if record.status == "completed" and not is_broken:
                _keep_weights(trainer, request, "final", send)  # now that all figures were taken
            if not is_broken and not any(parallel.gather(stop.requested)):
                add_autocast_penalty(record, trainer)
            parallel.leave()
            if request.is_recorded:
                add_prediction(record, request, prepared.taken.device)
        finally:  # on a full disk, too
            recorder.close()
        settle_stop(record)
        recorder.write()
    return record.status


def _trainer(
    request: RunRequest, built: Built, record: RunRecord, send: Send, stop: StopRequest, watchdog: Watchdog
) -> Trainer:
    device, sent_s = built.precision.device, -_PROGRESS_EVERY_S

    def progress(trainer: Trainer) -> None:
        nonlocal sent_s
        now_s = time.perf_counter()
        if now_s - sent_s >= _PROGRESS_EVERY_S or trainer.step == trainer.num_steps:
            sent_s = now_s
            send(_progress(trainer))

    def save(trainer: Trainer) -> None:
        name = component_name(request.config.model)
        try:
            take_checkpoint(trainer, request.directory, training_hash(request.config), name, record.arm)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # The training is worth more than its checkpoint, and the previous checkpoint is still there.
            reason = f"{error.filename}: {error.strerror}"
            send(Say(f"no room for checkpoints, the training goes on without: {reason}"))

    return assemble_trainer(
        request.config,
        built,
        device,
        record=record,
        tracker=tracker_of(request, send, stop) if request.is_recorded else None,
        directory=request.directory if request.is_recorded else None,
        on_rows=progress,
        save=save,
        keep_best=lambda trainer: _keep_weights(trainer, request, "best", send),
        watchdog=watchdog,
        may_watch=True,
    )


def _keep_weights(trainer: Trainer, request: RunRequest, kind: Literal["final", "best"], send: Send) -> None:
    """Keep the weights and record them, if the run is to leave them; each rank calls it."""
    choice, record = request.config.trainer.keep_weights, trainer.recorder.record
    if choice == "auto":
        choice = "none" if request.in_sweep else "final" if request.config.trainer.patience is None else "both"
    if choice not in (kind, "both"):
        return
    try:
        kept = keep_weights(trainer, request.directory, kind)
    except OSError as error:
        send(Say(f"the {kind} weights are not kept: {error.filename}: {error.strerror}"))
    else:
        record.weights = [*(other for other in record.weights if other.file != kept.file), kept]
        trainer.recorder.write()


def _progress(trainer: Trainer) -> Progress:
    """The progress by the latest row, without a device synchronization."""
    values = trainer.recorder.values
    return Progress(
        trainer.step,
        trainer.num_steps,
        loss=values.get("train/loss"),
        scale=values.get("amp/scale"),
        peak_memory_gib=values.get("memory/peak_allocated_gib", values.get("memory/peak_allocated_run_gib")),
    )


def _begin_record(request: RunRequest, built: Built, taken: RunDevice) -> RunRecord:
    device = taken.device
    record = new_record(
        request.config,
        device=str(taken),
        device_name=taken.name,
        data_fingerprint=built.data.fingerprint,
        batch_search=request.batch_search,
        world_size=built.parallel.world_size,
    )
    record.identity.steps, record.identity.lr = built.num_steps, learning_rate(next(iter(built.optimizers.values())))
    record.identity.model_size = sum(parameter.numel() for parameter in built.model.parameters())
    if (request.directory / FILE_NAME).exists() and request.checkpoint is not None:
        earlier = RunRecord.read(request.directory)
        record.run_id, record.started_at = earlier.run_id, earlier.started_at
        record.attempts, record.wandb, record.history_digest = earlier.attempts, earlier.wandb, earlier.history_digest
        record.weights = earlier.weights
    precision = request.config.precision
    with built.precision.flags():
        own = own_code(*(getattr(request.config, group) for group in COMPONENTS))
        code = {"code_version": code_version()} | ({"own_code": own} if own else {})
        record.environment = {**code, **environment(device)}
        if precision.parameters == "float32":
            record.proof.fp32_bits = bits = kept_bits(device, built.model)
            record.proof.fp32_arithmetic = {**exact_or_rounded(bits)}
        record.proof |= built.precision.prove()
    record.proof.optimizer_fused = all(map(is_fused, built.optimizers.values()))
    return record


def _continue(trainer: Trainer, request: RunRequest, record: RunRecord, send: Send) -> None:
    """Resume from the checkpoint, if any, and append this process's attempt to the record."""
    attempt = Attempt(started_at=now(), host=socket.gethostname(), pid=os.getpid(), slurm_job=own_job())
    if request.checkpoint is not None:
        found = find_checkpoint(request.checkpoint, trainer.parallel)
        require_same_model(found.checkpoint, found.path, trainer.model, component_name(request.config.model))
        if found.note is not None and request.checkpoint == request.directory and request.is_recorded:
            set_aside(request.directory)
        notes = [] if found.note is None else [found.note]
        saved = record_beside(found.path)
        notes += resume(trainer, found, training_hash(request.config))
        if not found.path.resolve().is_relative_to(request.directory.resolve()):
            attempt.saved_in, attempt.saved_by = found.checkpoint.arm, None if saved is None else saved.run_id
            trainer.validation.best = None  # of the other run, which has its weights
        record.arm = arm_after(arm_of(request.config), found.checkpoint.arm, found.checkpoint.step)
        if request.is_recorded:
            for kept in [kept for kept in record.weights if kept.step > trainer.step]:  # of steps that are repeated
                record.weights.remove(kept)
                (request.directory / kept.file).unlink(missing_ok=True)
            last_row = repair_history(request.directory, record.history_digest)
            if last_row.pop(STEP, 0) == trainer.step:  # maybe no further step is left
                trainer.recorder.values |= last_row
        attempt.checkpoint, attempt.notes = str(found.path), notes
        for note in notes:
            send(Say(note))
    attempt.from_step = trainer.step
    record.attempts.append(attempt)
