"""Runs on W&B completed from their directories: what a dead server, a killed process, an offline machine left out."""

import json
import time
from collections.abc import Container
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from filelock import Timeout

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import STEP
from ampsweep.record import RunRecord, read_history
from ampsweep.record.outcome import OUTCOMES
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.wandb.api import ASK_S, RemoteRun, WandbError, remote_run
from ampsweep.tracking.wandb.core import CoreLimit, abandon_wandb
from ampsweep.tracking.wandb.library import NO_ANSWER, error_clause, lost_errors, mark_as_sent
from ampsweep.tracking.wandb.mirror import sending_lock
from ampsweep.tracking.wandb.outage import COMMAND_PATIENCE
from ampsweep.tracking.wandb.run import WandbRun
from ampsweep.tracking.wandb.run_settings import WandbPlace
from ampsweep.tracking.wandb.uploads import METADATA, lacking, machine_files

_ARRIVALS_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Pauses before the server is asked whether everything has arrived: what it took it may show a little later."""

_OPENING_S: Final = 90.0
"""The time without any progress after which a run that is being sent is given up; wandb has 60 s of its own for it."""


@dataclass(frozen=True)
class Synced:
    """The result for one run."""

    num_sent: int
    """Rows."""
    url: str
    was_complete: bool = False
    """W&B had everything before; nothing was sent."""
    doubled: tuple[int, ...] = ()
    """Steps of which W&B has more rows than one; it takes none back."""
    lacking: tuple[str, ...] = ()
    """Files that W&B lacks although they were sent."""
    refusal: str | None = None
    """A clause about what the server said to the first of them; None where it said nothing."""


def complete(record: RunRecord, directory: Path, *, group: str | None) -> Synced:
    """Send what W&B lacks of the run in ``directory``, which has ended, and note it in the record on disk.

    A row that W&B has is not sent again. ``group`` is that of a run that has never been meant for W&B.

    Raises:
        WandbError: the server refuses the run or is lost; to be done again, then.
    """
    place, noted = place_of(record, group), replace(record.wandb)
    rows = read_history(directory, record.history)
    steps = [row[STEP] for row in rows]
    try:
        with sending_lock(directory).acquire(timeout=ASK_S):
            there = remote_run(_path(record, place), with_steps=True)
            has_rows = there is not None and _is_complete(there, record, steps)
            if there is not None and has_rows and not _lacking(there, record, directory, place):
                _note(record, directory, steps, there.url, noted)
                return Synced(0, there.url, was_complete=True, doubled=there.doubled)
            sent = _send(record, directory, place, rows, () if there is None else there.steps)
            there, absent = _arrived(record, place, directory, steps, is_refused=sent.refusal is not None)
            mark_as_sent(directory)
    except Timeout as error:
        raise WandbError(f"{directory}: another process is sending it") from error
    except lost_errors() as error:
        abandon_wandb()
        raise WandbError(f"{directory}: W&B: {error_clause(error)}") from error
    _note(record, directory, steps, there.url, noted)
    return Synced(sent.num_rows, there.url, doubled=there.doubled, lacking=absent, refusal=sent.refusal)


def place_of(record: RunRecord, group: str | None) -> WandbPlace:
    """The place on W&B where the run is or would be; ``group`` is that of a run that was never meant for W&B."""
    if record.wandb.project is not None:
        return WandbPlace.recorded(record.wandb)
    return WandbPlace.here(_tracking(record), group)


def _tracking(record: RunRecord) -> TrackingConfig:
    known, found = {field.name for field in fields(TrackingConfig)}, record.config["tracking"]
    return TrackingConfig(**{name: value for name, value in found.items() if name in known})


def _path(record: RunRecord, place: WandbPlace) -> str:
    parts = (place.entity, place.project, _id(record))
    return "/".join(part for part in parts if part is not None)


def _id(record: RunRecord) -> str:
    return record.wandb.id or record.run_id


def _is_complete(there: RemoteRun, record: RunRecord, steps: list[int]) -> bool:
    has_ended_so = (there.state == "finished") == (record.status in OUTCOMES) and there.state != "running"
    says_so = there.summary.get("status") == record.status
    # Made after its end for a run whose process died.
    is_predicted = record.prediction is None or "prediction" in there.summary
    return has_ended_so and says_so and is_predicted and all(step in there.steps for step in steps)


def _lacking(there: RemoteRun, record: RunRecord, directory: Path, place: WandbPlace) -> tuple[str, ...]:
    return lacking(_path(record, place), record, directory, there.summary)


@dataclass(frozen=True)
class _Sent:
    num_rows: int
    refusal: str | None
    """`WandbRun.close`'s clause about a file."""


def _send(
    record: RunRecord, directory: Path, place: WandbPlace, rows: list[dict[str, Any]], there: Container[int]
) -> _Sent:
    """Open the run, send the rows that are missing and all files, close it."""
    settings = place.settings(_tracking(record).tags)
    settings.finish_timeout = 0.0  # a long history may take its time
    # The machine that sends is not the one that trained; the first two are as private as those of `WandbPlace`.
    settings.x_disable_meta, settings.x_save_requirements, settings.disable_git = True, False, True
    settings.git_commit = record.environment.get("git_commit")
    run = WandbRun(settings, "online", COMMAND_PATIENCE)
    record.wandb = WandbFacts(last_step=0) | record.wandb
    record.wandb |= WandbFacts(id=_id(record), mode="online", **place.facts())
    num_sent = 0
    with CoreLimit(_OPENING_S, NO_ANSWER) as limit:
        run.open(record, directory, [row[STEP] for row in rows], there=there)
        for row in rows:
            limit.moved()
            num_sent += run.log({key: value for key, value in row.items() if key != STEP}, row[STEP])
        run.save_files(_machine(record, directory))
    return _Sent(num_sent, run.close(record, directory))


def _machine(record: RunRecord, directory: Path) -> dict[str, bytes]:
    """W&B's files about the machine that trained: as it left them there, or from the record."""
    files = {name: path.read_bytes() for name, path in machine_files(directory).items()}
    if METADATA not in files:
        facts = {
            "os": record.environment.get("os"),
            "python": record.environment.get("python"),
            "host": record.attempts[-1].host if record.attempts else None,
            "startedAt": record.started_at,
        }
        files[METADATA] = json.dumps({name: fact for name, fact in facts.items() if fact is not None}).encode()
    return files


def _arrived(
    record: RunRecord, place: WandbPlace, directory: Path, steps: list[int], *, is_refused: bool
) -> tuple[RemoteRun, tuple[str, ...]]:
    """The run as the server shows it with all its rows, and what it lacks of the files.

    Raises:
        OSError: it does not show all rows.
    """
    complete: RemoteRun | None = None
    absent: tuple[str, ...] = ()
    for pause_s in _ARRIVALS_S:
        time.sleep(pause_s)
        there = remote_run(_path(record, place), with_steps=True)
        if there is not None and _is_complete(there, record, steps):
            complete, absent = there, _lacking(there, record, directory, place)
            if not absent or is_refused:
                break
    if complete is None:
        raise OSError("the server took everything, but does not show all of it")
    return complete, absent


def _note(record: RunRecord, directory: Path, steps: list[int], url: str, noted: WandbFacts) -> None:
    """Say in the record on disk, which has ``noted``, that W&B has the run."""
    now = WandbFacts(id=_id(record), mode="online", url=url, last_step=steps[-1] if steps else 0)
    record.wandb = replace(record.wandb | now, error=None, reason=None)
    if record.wandb != noted:
        record.write(directory)
