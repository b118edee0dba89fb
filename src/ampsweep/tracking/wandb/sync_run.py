"""Runs on W&B completed from their directories: what a dead server, a killed process, an offline machine left out."""

import json
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import Timeout

from ampsweep.metrics import STEP
from ampsweep.record import FILE_NAME, RecordError, RunRecord, read_history
from ampsweep.record.outcome import OUTCOMES
from ampsweep.record.parts import WandbFacts
from ampsweep.text import plural
from ampsweep.tracking.wandb.api import ALIVE_S, ASK_S, log_in, remote_run, rows_by_step, run_path
from ampsweep.tracking.wandb.content import RECORD_NAME, artifact_files, artifact_name, tracking_of
from ampsweep.tracking.wandb.library import WandbError, mark_as_sent
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run import close_run, open_run, sending_lock
from ampsweep.tracking.wandb.run_settings import finish_timeout_s, place_here, run_settings

if TYPE_CHECKING:
    from wandb.apis.public import File, Run

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
_OF_SENDING: Final = dict.fromkeys(("wandb", "digest"))
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
        WandbError: the server is not there, or another process is sending the next of them.
        RecordError, OSError: its files cannot be read.
    """
    log_in(caller, within_s)
    for directory, group in runs:
        try:
            with sending_lock(directory).acquire(timeout=_LOCKED_S):
                done = _complete(directory, group, lambda: caller.send(None))
        except Timeout as error:
            raise WandbError("another process is sending it") from error
        caller.send(done)


def _complete(directory: Path, group: str | None, moved: Callable[[], None]) -> Synced:
    """Send what W&B lacks of the run in ``directory``, which has ended, and note it in the record on disk."""
    record = RunRecord.read(directory)
    rows, noted = read_history(directory, record.history), record.wandb
    now = WandbFacts(last_step=0) | noted | place_of(record, group)
    record.wandb = now | WandbFacts(id=noted.id or record.run_id, mode="online")
    there = _Shown.of(record, directory, rows)
    if there.absent == ():
        done = Synced(0, there.url, was_complete=True, doubled=there.doubled)
    else:
        num_sent = _send(record, directory, rows, there.steps, moved)
        for pause_s in _ARRIVALS_S:
            time.sleep(pause_s)
            there = _Shown.of(record, directory, rows)
            if there.absent == ():
                break
        if there.absent is None:
            raise WandbError("the server took everything, but does not show all of it")
        mark_as_sent(directory)
        done = Synced(num_sent, there.url, doubled=there.doubled, lacking=there.absent)
    sent = WandbFacts(url=done.url, last_step=rows[-1][STEP] if rows else 0)
    record.wandb = replace(record.wandb | sent, error=None, reason=None)
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


def place_of(record: RunRecord, group: str | None) -> WandbFacts:
    """The place on W&B where the run is or would be; ``group`` is that of a run that was never meant for W&B."""
    return record.wandb if record.wandb.project is not None else place_here(tracking_of(record), group)


@dataclass(frozen=True)
class _Shown:
    """The run as the server shows it."""

    url: str = ""
    steps: Container[int] = ()
    doubled: tuple[int, ...] = ()
    """Steps of which it has more rows than one."""
    absent: tuple[str, ...] | None = None
    """Names of the files that it lacks, or has of an earlier end of the run; None where it lacks more than files."""

    @classmethod
    def of(cls, record: RunRecord, directory: Path, rows: Rows) -> "_Shown":
        there = remote_run(run_path(record.wandb, str(record.wandb.id)))
        if there is None:
            return cls()
        found, summary = rows_by_step(there), there.summary_metrics
        has_ended_so = (there.state == "finished") == (record.status in OUTCOMES) and there.state != "running"
        says_so = summary.get("status") == record.status
        # Made after its end for a run whose process died.
        is_predicted = record.prediction is None or "prediction" in summary
        is_complete = has_ended_so and says_so and is_predicted and all(row[STEP] in found for row in rows)
        return cls(
            there.url,
            found.keys(),
            tuple(sorted(step for step, number in found.items() if number > 1)),
            _absent(there, record, directory) if is_complete else None,
        )


def _absent(there: "Run", record: RunRecord, directory: Path) -> tuple[str, ...]:
    """The summary names the files of the tables. Of artifacts any version will do: a checkpoint can be too large to be
    compared."""
    import wandb

    tables = [
        value["path"]
        for value in there.summary_metrics.values()
        if isinstance(value, dict) and str(value.get("_type")).endswith("-file") and "path" in value
    ]
    wanted = [RECORD_NAME, *_machine_files(directory), *tables]
    files = {file.name: file for file in there.files(wanted)}
    found = {name for name, file in files.items() if name != RECORD_NAME or _is_of(file, record)}
    artifacts = [artifact_name(kind, there.id) for kind in artifact_files(record, directory)]
    api, place = wandb.Api(timeout=ASK_S), f"{there.entity}/{there.project}"
    found |= {name for name in artifacts if api.artifact_exists(f"{place}/{name}:latest")}  # all of its files
    return tuple(name for name in (*wanted, *artifacts) if name not in found)


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
    return bool(there | _OF_SENDING == ours | _OF_SENDING)


def _send(record: RunRecord, directory: Path, rows: Rows, there: Container[int], moved: Callable[[], None]) -> int:
    """Open the run, send the rows that are not ``there`` and all files, close it; the number of rows that were sent."""
    settings = run_settings(record.wandb, tracking_of(record).tags)
    # The machine that sends is not the one that trained; the first two are as private as those of `run_settings`.
    settings.x_disable_meta, settings.x_save_requirements, settings.disable_git = True, False, True
    settings.git_commit = record.environment.get("git_commit")
    run = open_run(record, directory, settings)
    num_sent = 0
    for number, row in enumerate(rows):
        if number % _ROWS == 0:
            moved()
        if row[STEP] not in there:
            run.log(row)
            num_sent += 1
    for name, content in _machine(record, directory).items():
        path = Path(run.dir) / name
        path.write_bytes(content)
        run.save(path, base_path=path.parent, policy="now")
    close_run(run, record, directory)
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


def _machine_files(directory: Path) -> dict[str, Path]:
    """W&B's files about the machine that trained, as it left them in the run's directory."""
    return {path.name: path for path in sorted(directory.glob("wandb/*run-*/files/*")) if path.name in _OF_MACHINE}
