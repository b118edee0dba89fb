"""The W&B process beside a training: sends the rows of the history file to W&B as they appear."""

import os
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import STEP
from ampsweep.records import HISTORY_NAME, RunRecord, history_row, read_history
from ampsweep.records.sections import WandbFacts
from ampsweep.tracking.wandb.content import as_sent
from ampsweep.tracking.wandb.library import Login, WandbError
from ampsweep.tracking.wandb.run import close_run, open_run, sending_lock
from ampsweep.tracking.wandb.run_settings import find_access, place_here, run_settings
from ampsweep.tracking.wandb.server import refusal, steps_there

if TYPE_CHECKING:
    import wandb

    from ampsweep.tracking.wandb.service import Caller

_POLL_S: Final = 0.5
_TROUBLE_S: Final = 0.5  # limit of the server's answer at the end of a run
_REFUSAL_S: Final = 1.0  # limit of the server's answer at the start of a run


@dataclass(frozen=True)
class Stopped:
    """The message that somebody has stopped the run on the server."""


def check(caller: "Caller", config: TrackingConfig) -> str | None:
    """Return the reason why a run cannot be tracked or the server refuses it; None if there is none."""
    try:
        access = find_access(config)
        place = place_here(config, None)
        run_settings(place, config.tags)
        refused = None if access.login is None else _refusal(access.login, place.entity)
        return refused and f"{refused}; tracking.mode=offline trains without a server"
    except ValueError as error:
        return str(error)


def _refusal(login: Login, entity: str | None) -> str | None:
    try:
        return refusal(login, entity, within_s=_REFUSAL_S)
    except WandbError:  # an outage must not keep anybody from training
        return None


def follow(caller: "Caller", config: TrackingConfig, record: RunRecord, directory: Path, training: int) -> WandbFacts:
    """Send the run in ``directory`` to W&B until the training (process ``training``) ends the run or dies. The caller
    gets a line for the user, and each change of the facts about the run on W&B; the final ones are returned."""
    access = find_access(config)
    caller.send(access.line)
    record.wandb.mode = access.mode
    caller.send(replace(record.wandb))
    if access.login is not None:
        Thread(target=_find_trouble, args=(caller, record, access.login), daemon=True).start()
    with sending_lock(directory):
        settings = run_settings(record.wandb, config.tags, training=training)
        before = [row[STEP] for row in read_history(directory)]
        run = open_run(record, directory, settings, lambda: caller.send(Stopped()))
        there = range((record.wandb.last_step or 0) + 1) if run.offline else steps_there(run, before)
        caller.send(replace(record.wandb))
        if config.code:
            run.log_code()
        with (directory / HISTORY_NAME).open("rb") as history:
            while not caller.has_ended.wait(_POLL_S):
                if _send_rows(run, record, history, there) and run.offline:  # only this process knows of them
                    caller.send(replace(record.wandb))
            _send_rows(run, record, history, there)
        ended = RunRecord.read(directory)
        ended.wandb = record.wandb | WandbFacts(stopped=ended.wandb.stopped)
        close_run(run, ended, directory)
        # wandb reports no error if the server no longer takes the key.
        if access.login is not None and (refused := _refusal(access.login, run.entity)) is not None:
            raise WandbError(refused)
    return replace(ended.wandb, error=None)


def _find_trouble(caller: "Caller", record: RunRecord, login: Login) -> None:
    """At the end of the run, tell the caller why W&B may not get everything in time."""
    caller.has_ended.wait()
    try:
        trouble = refusal(login, None, within_s=_TROUBLE_S)
    except WandbError as error:
        trouble = str(error)
    if trouble is not None:
        caller.send(replace(record.wandb, error=trouble))


def _send_rows(run: "wandb.Run", record: RunRecord, history: BinaryIO, there: Container[int]) -> bool:
    """Send the new rows that are not ``there``; return True if there were any."""
    directory = Path(str(history.name)).parent
    before = record.wandb.last_step
    while (line := history.readline()).endswith(b"\n"):
        row = history_row(line.decode())
        if row[STEP] not in there:
            run.log(as_sent(row, directory))
            record.wandb.last_step = int(row[STEP])
    history.seek(-len(line), os.SEEK_CUR)  # an unfinished line
    return record.wandb.last_step != before
