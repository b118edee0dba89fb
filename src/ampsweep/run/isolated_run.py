"""A run in a child process, from the parent's side: the record holds the outcome even if the child is killed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.launch.isolated_process import ChildExit, run_isolated
from ampsweep.launch.slurm import own_job
from ampsweep.launch.watchdog import STACKS_BEGIN
from ampsweep.parallel.rank_environment import place_in
from ampsweep.records import RunRecord, now
from ampsweep.records.outcome import OOM_KILLED, Status
from ampsweep.run.failure import ERROR_NAME, kept_error, record_so_far, write_error
from ampsweep.run.messages import MessagePrinter
from ampsweep.run.request import RunRequest

_TRAIN: Final = NamedFunction[Status]("ampsweep.run.lifecycle:run_once")
_TRAIN_ON_RANKS: Final = NamedFunction[Status]("ampsweep.run.rank_launcher:run_on_ranks")
_TRAIN_ON_RANK: Final = NamedFunction[Status]("ampsweep.run.rank:run_rank")
_NO_RESULT: Final = "the process ended without a result"
_STOOD_STILL: Final = "Python stood still beyond trainer.max_seconds and trainer.grace_seconds"


def run_in_own_process(
    request: RunRequest, display: MessagePrinter, is_tried_again: Callable[[RunRecord], bool] = lambda record: False
) -> RunRecord:
    """Train in a child process and return the record; KeyboardInterrupt, after the end, if asked to stop. The end is
    not displayed if `is_tried_again` returns True: another training follows."""
    display.run_begins(request.config)
    (request.directory / ERROR_NAME).unlink(missing_ok=True)  # of an earlier attempt
    train = _TRAIN
    if request.config.parallel.strategy != "single":
        train = _TRAIN_ON_RANKS if place_in() is None else _TRAIN_ON_RANK
    ended = run_isolated(train, (request,), on_message=display.on_message)
    record = complete_record(request, ended)
    if not is_tried_again(record):
        display.run_ends(request.config, record)
    if record.status == "failed":
        display.say(f"{request.directory.name} failed; its error in full: {request.directory / ERROR_NAME}")
    ended.raise_interrupt()
    return record


def complete_record(request: RunRequest, ended: ChildExit[Any]) -> RunRecord:
    request.directory.mkdir(parents=True, exist_ok=True)  # somebody may have deleted it
    record = record_so_far(request)
    # A kill after the training, during the prediction or the upload, does not change the outcome.
    has_trained = ended.exitcode < 0 and record.status in ("completed", "diverged")
    if ended.result is None and not ended.stopped_by and not has_trained:
        if not (kept := kept_error(request.directory)):
            write_error(request.directory, ended.error or _NO_RESULT, request.config)
        sentence = _STOOD_STILL if kept.startswith(STACKS_BEGIN) else ended.sentence or _NO_RESULT
        killed = replace(OOM_KILLED, slurm_job=own_job())
        record.status, record.oom = ("oom", killed) if ended.oom_killed else ("failed", None)
        record.error = record.error or sentence if record.oom is None else record.oom.sentence
        record.ended_at = record.ended_at or now()
    record.write(request.directory)
    return record
