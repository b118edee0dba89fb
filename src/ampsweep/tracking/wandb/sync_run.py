"""Runs on W&B completed from their directories: what a dead server, a killed process, an offline machine left out."""

import json
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import Timeout

from ampsweep.metrics import STEP
from ampsweep.record import FILE_NAME, RecordError, RunRecord, read_history
from ampsweep.record.outcome import OUTCOMES
from ampsweep.record.parts import WandbFacts
from ampsweep.text import plural
from ampsweep.tracking.wandb.api import ALIVE_S, ASK_S, RemoteRun, log_in, remote_run, run_path
from ampsweep.tracking.wandb.content import RECORD_NAME, artifact_files, artifact_name, tracking_of
from ampsweep.tracking.wandb.library import WandbError, mark_as_sent
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run import WandbRun, sending_lock
from ampsweep.tracking.wandb.run_settings import WandbPlace, finish_timeout_s

if TYPE_CHECKING:
    from wandb.apis.public import File

    from ampsweep.tracking.wandb.service import Caller

_ARRIVALS_S: Final = (0.0, 0.5, 1.0, 2.0)
"""Pauses before the server is asked whether everything has arrived: what it took it may show a little later."""

_LOCKED_S: Final = 3.0
_RUN_S: Final = 60.0
_AFTER_S: Final = 30.0
"""The time that a command gives, at its end, to runs that W&B has lost."""
_SILENT_S: Final = 8.0
"""The time after which it leaves a server that says it is there, and takes nothing."""

_ROWS: Final = 1000
"""Rows after which a run that is being sent shows that it has moved."""

_METADATA: Final = "wandb-metadata.json"
_OF_MACHINE: Final = (_METADATA, "requirements.txt")
_OF_SENDING: Final = ("wandb", "digest")
"""Parts of a record that change when it is sent: what it says of W&B, and the digest of the whole."""

Rows = list[dict[str, Any]]


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


def complete_runs(caller: "Caller", runs: Sequence[tuple[Path, str | None]], within_s: float) -> None:
    """Send what W&B lacks of the runs in these directories, and the caller a `Synced` after each, in their order.

    Beside a directory is the group of a run that has never been meant for W&B. What is sent in between says only that
    something moves. The server has ``within_s`` to say that it is there.

    Raises:
        WandbError, RecordError, OSError: the server is not there, or what `complete` raises, of the next of them.
    """
    log_in(within_s)
    for directory, group in runs:
        caller.send(complete(directory, group, lambda: caller.send(None)))


def complete(directory: Path, group: str | None, moved: Callable[[], None]) -> Synced:
    """Send what W&B lacks of the run in ``directory``, which has ended, and note it in the record on disk.

    A row that W&B has is not sent again.

    Raises:
        WandbError: another process is sending it.
        RecordError, OSError: its files cannot be read.
    """
    record = RunRecord.read(directory)
    place, noted = place_of(record, group), replace(record.wandb)
    rows = read_history(directory, record.history)
    try:
        with sending_lock(directory).acquire(timeout=_LOCKED_S):
            there, absent = _look(record, directory, place, rows)
            if there is not None and absent == ():
                done = Synced(0, there.url, was_complete=True, doubled=there.doubled)
            else:
                num_sent = _send(record, directory, place, rows, () if there is None else there.steps, moved)
                there, absent = _arrived(record, directory, place, rows)
                mark_as_sent(directory)
                done = Synced(num_sent, there.url, doubled=there.doubled, lacking=absent)
    except Timeout as error:
        raise WandbError("another process is sending it") from error
    now = WandbFacts(id=_id(record), mode="online", url=done.url, last_step=rows[-1][STEP] if rows else 0)
    record.wandb = replace(record.wandb | now, error=None, reason=None)
    if record.wandb != noted:
        record.write(directory)
    return done


def send_lost(place: Path, directories: Sequence[Path], wandb: WandbAddress) -> str | None:
    """Send, for a while, what W&B has lost of runs that have just ended in or below ``place``.

    Returns a line for the user; None where it has lost nothing.
    """
    lost = [path for path in directories if RunRecord.read(path).wandb.error is not None]
    if not lost:
        return None
    limit_s = _AFTER_S + (finish_timeout_s() or 0)
    sent, over_at, failure = 0, time.monotonic() + limit_s, ""

    def hear(done: Synced | None) -> None:
        nonlocal sent, failure
        sent += done is not None
        failure = failure or ("it does not show every file" if done is not None and done.lacking else "")
        if time.monotonic() > over_at:
            raise WandbError(f"not done in {limit_s:.0f} s")

    try:
        runs = [(path, None) for path in lost]
        wandb.call(complete_runs, runs, ALIVE_S, silence_s=min(_SILENT_S, limit_s), on_message=hear)
    except (WandbError, RecordError, OSError, KeyboardInterrupt) as error:
        failure = str(error) or "interrupted"
    rest = f" ({failure}); `ampsweep sync {place}` sends the rest" if failure else ""
    return f"W&B: {sent} of {plural(len(lost), 'lost run')} sent after all{rest}"


def patience_s(runs: Iterable[tuple[Path, RunRecord]]) -> float:
    """The time that one of the runs may take: a minute, and a second for each MiB of its largest artifact."""
    paths = (path for directory, record in runs for path in artifact_files(record, directory).values())
    files = (file for path in paths for file in (path, *path.rglob("*")))
    return _RUN_S + max((file.stat().st_size for file in files), default=0) / 2**20


def place_of(record: RunRecord, group: str | None) -> WandbPlace:
    """The place on W&B where the run is or would be; ``group`` is that of a run that was never meant for W&B."""
    if record.wandb.project is not None:
        return WandbPlace.recorded(record.wandb)
    return WandbPlace.here(tracking_of(record), group)


def _id(record: RunRecord) -> str:
    return record.wandb.id or record.run_id


def _look(
    record: RunRecord, directory: Path, place: WandbPlace, rows: Rows
) -> tuple[RemoteRun | None, tuple[str, ...] | None]:
    """The run as the server shows it, and the files that it lacks; None where it lacks more than files."""
    path = run_path(place, _id(record))
    there = remote_run(path, with_steps=True)
    if there is None or not _is_complete(there, record, rows):
        return there, None
    return there, _lacking(path, record, directory, there.summary)


def _is_complete(there: RemoteRun, record: RunRecord, rows: Rows) -> bool:
    has_ended_so = (there.state == "finished") == (record.status in OUTCOMES) and there.state != "running"
    says_so = there.summary.get("status") == record.status
    # Made after its end for a run whose process died.
    is_predicted = record.prediction is None or "prediction" in there.summary
    return has_ended_so and says_so and is_predicted and all(row[STEP] in there.steps for row in rows)


def _send(
    record: RunRecord,
    directory: Path,
    place: WandbPlace,
    rows: Rows,
    there: Container[int],
    moved: Callable[[], None],
) -> int:
    """Open the run, send the rows that are missing and all files, close it; the number of rows that were sent."""
    settings = place.settings(tracking_of(record).tags)
    # The machine that sends is not the one that trained; the first two are as private as those of `WandbPlace`.
    settings.x_disable_meta, settings.x_save_requirements, settings.disable_git = True, False, True
    settings.git_commit = record.environment.get("git_commit")
    run = WandbRun(settings, "online")
    record.wandb = WandbFacts(last_step=0) | record.wandb
    record.wandb |= WandbFacts(id=_id(record), mode="online", **place.facts())
    num_sent = 0
    run.open(record, directory, [row[STEP] for row in rows], there=there)
    for number, row in enumerate(rows):
        if number % _ROWS == 0:
            moved()
        num_sent += run.log({key: value for key, value in row.items() if key != STEP}, row[STEP])
    run.save_files(_machine(record, directory))
    run.close(record, directory)
    return num_sent


def _machine(record: RunRecord, directory: Path) -> dict[str, bytes]:
    """W&B's files about the machine that trained: as it left them there, or from the record."""
    found = {
        "os": record.environment.get("os"),
        "python": record.environment.get("python"),
        "host": record.attempts[-1].host if record.attempts else None,
        "startedAt": record.started_at,
    }
    told = json.dumps({name: fact for name, fact in found.items() if fact is not None}).encode()
    return {_METADATA: told} | {name: path.read_bytes() for name, path in _machine_files(directory).items()}


def _arrived(record: RunRecord, directory: Path, place: WandbPlace, rows: Rows) -> tuple[RemoteRun, tuple[str, ...]]:
    """The run as the server shows it with all its rows, and what it lacks of the files.

    Raises:
        WandbError: it does not show all rows.
    """
    for pause_s in _ARRIVALS_S:
        time.sleep(pause_s)
        there, absent = _look(record, directory, place, rows)
        if absent == ():
            break
    if there is None or absent is None:
        raise WandbError("the server took everything, but does not show all of it")
    return there, absent


def _machine_files(directory: Path) -> dict[str, Path]:
    """W&B's files about the machine that trained, as it left them in the run's directory."""
    return {path.name: path for path in sorted(directory.glob("wandb/*run-*/files/*")) if path.name in _OF_MACHINE}


def _lacking(path: str, record: RunRecord, directory: Path, summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of what the run in ``directory`` uploads and the server lacks, or has of an earlier end of the run.

    The run is at ``path``, [ENTITY/]PROJECT/ID, with this ``summary``, which names the files of its tables. Of
    artifacts any version will do: a checkpoint can be too large to be compared.
    """
    import wandb

    wanted = [RECORD_NAME, *_machine_files(directory), *_tables(summary)]
    api = wandb.Api(timeout=ASK_S)
    run = api.run(path)
    files = {file.name: file for file in run.files(wanted)}
    there = {name for name, file in files.items() if name != RECORD_NAME or _is_of(file, record)}
    artifacts = [artifact_name(kind, run.id) for kind in artifact_files(record, directory)]
    place = f"{run.entity}/{run.project}"
    there |= {name for name in artifacts if api.artifact_exists(f"{place}/{name}:latest")}  # all of its files
    return tuple(name for name in (*wanted, *artifacts) if name not in there)


def _tables(summary: Mapping[str, Any]) -> list[str]:
    return [
        value["path"]
        for value in summary.values()
        if isinstance(value, Mapping) and str(value.get("_type")).endswith("-file") and "path" in value
    ]


def _is_of(file: "File", record: RunRecord) -> bool:
    import wandb

    with tempfile.TemporaryDirectory() as here:
        record.write(Path(here))
        ours = json.loads((Path(here) / FILE_NAME).read_bytes())
        try:
            file.download(root=here, replace=True).close()
            there = json.loads((Path(here) / RECORD_NAME).read_bytes())
        except (ValueError, OSError, wandb.Error):  # storage may not give it either
            return False
        changes = dict.fromkeys(_OF_SENDING)
        return bool(there | changes == ours | changes)
