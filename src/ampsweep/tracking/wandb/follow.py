"""The work of the process beside a training: it follows the run's history file into W&B."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import STEP
from ampsweep.record import HISTORY_NAME, RunRecord, history_row, read_history
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.wandb.library import Login
from ampsweep.tracking.wandb.run import WandbRun, sending_lock
from ampsweep.tracking.wandb.run_settings import WandbPlace, online_login, resolve_mode
from ampsweep.tracking.wandb.server import refusal, trouble

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.service import Caller

_EVERY_S: Final = 0.5
"""The pause between two looks for new rows."""
_TROUBLE_S: Final = 0.5
"""The time that the server has at the run's end to say that it is there."""
_REFUSAL_S: Final = 1.0
"""The time that it has at the start to say that it will not have the run."""


@dataclass(frozen=True)
class Stopped:
    """Sent where somebody has stopped the run on the server."""


def check(caller: "Caller", config: TrackingConfig) -> str | None:
    """The reason why a run could not be tracked so, or why the server refuses it; None where nothing is wrong."""
    try:
        mode, _ = resolve_mode(config)
        if mode == "disabled":
            return None
        place = WandbPlace.here(config, None)
        place.settings(config.tags)
        login = online_login() if mode == "online" else None
        refused = None if login is None else refusal(login, place.entity, within_s=_REFUSAL_S)
        return refused and f"{refused}; tracking.mode=offline trains without a server"
    except ValueError as error:
        return str(error)


def follow(caller: "Caller", config: TrackingConfig, record: RunRecord, directory: Path, training: int) -> WandbFacts:
    """Keep the run in ``directory`` on W&B up to date to its end; returns what is true of it there by then.

    The caller, a training in the process ``training``, ends it by its last record; without one it has died, and the
    record that it began with is true. It is sent a line for the user, and facts, each time that they change.
    """
    mode, line = resolve_mode(config)
    if mode == "disabled":
        return WandbFacts()
    login = online_login() if mode == "online" else None
    caller.send(line)
    record.wandb.mode = mode
    caller.send(replace(record.wandb))
    if login is not None:
        Thread(target=_find_trouble, args=(caller, record, login), daemon=True).start()
    with sending_lock(directory):
        run = WandbRun(WandbPlace.recorded(record.wandb).settings(config.tags, training=training), mode)
        steps = [row[STEP] for row in read_history(directory)]
        run.open(record, directory, steps, on_stop=lambda: caller.send(Stopped()))
        caller.send(replace(record.wandb))
        if config.code:
            run.save_code()
        with (directory / HISTORY_NAME).open("rb") as history:
            while not caller.has_spoken.wait(_EVERY_S):
                if _send_rows(run, record, history) and mode == "offline":  # nobody else could say what there is
                    caller.send(replace(record.wandb))
            _send_rows(run, record, history)
        if caller.word is not None:
            ended: RunRecord = caller.word
            ended.wandb = record.wandb | WandbFacts(stopped=ended.wandb.stopped)
            record = ended
        run.close(record, directory, login)
    return replace(record.wandb, error=None)


def _find_trouble(caller: "Caller", record: RunRecord, login: Login) -> None:
    """Tell, when the end has come, why W&B may not have everything in time."""
    caller.has_spoken.wait()
    if (found := trouble(login, within_s=_TROUBLE_S)) is not None:
        caller.send(replace(record.wandb, error=found))


def _send_rows(run: WandbRun, record: RunRecord, history: BinaryIO) -> bool:
    """Send the rows that are new; whether there were any."""
    before = record.wandb.last_step
    while (line := history.readline()).endswith(b"\n"):
        row = history_row(line.decode())
        step = int(row.pop(STEP))
        if run.log(row, step):
            record.wandb.last_step = step
    history.seek(-len(line), os.SEEK_CUR)  # of a line that is still being written
    return record.wandb.last_step != before
