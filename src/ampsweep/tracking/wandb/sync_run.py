"""Runs on W&B completed from their directories after an outage, a kill or an offline training."""

import json
import shutil
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from filelock import Timeout

from ampsweep.metrics import MEDIA, STEP
from ampsweep.records import RecordError, RunRecord, read_history
from ampsweep.records.outcome import OUTCOMES
from ampsweep.records.sections import WandbFacts
from ampsweep.text import plural
from ampsweep.tracking.wandb.content import RECORD_NAME, artifact_name, as_sent, kept_artifact, tracking_of
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run import close_run, open_run, sending_lock
from ampsweep.tracking.wandb.run_settings import finish_timeout_s, place_here, run_settings
from ampsweep.tracking.wandb.server import ALIVE_S, ASK_S, log_in, remote_run, run_path, steps_on

if TYPE_CHECKING:
    from wandb.apis.public import Run

    from ampsweep.tracking.wandb.service import Caller

_ARRIVALS_S: Final = (0.0, 0.5, 1.0, 2.0)  # pauses before checks: a server may show what arrived a little later
_LOCKED_S: Final = 3.0
_RUN_S: Final = 60.0
_AFTER_S: Final = 30.0  # limit for sending lost runs at the end of a command
_SILENT_S: Final = 8.0  # limit without progress there
_ROWS: Final = 1000  # rows between two signs of progress

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Synced:
    num_sent: int  # rows
    url: str
    was_complete: bool = False  # W&B had everything before; nothing was sent
    lacking: tuple[str, ...] = ()  # files that were sent, and W&B does not show


def complete_runs(caller: "Caller", runs: Sequence[tuple[Path, str | None]], within_s: float) -> None:
    """Send what W&B lacks of these runs (directories, each with the group of a run that was never meant for W&B), and
    the caller a `Synced` after each, in order, and None at each progress. Raises WandbError if the server does not
    answer within ``within_s`` or another process sends the next run, RecordError or OSError for its files."""
    log_in(caller, within_s)
    for directory, group in runs:
        try:
            with sending_lock(directory).acquire(timeout=_LOCKED_S):
                done = _complete(directory, group, lambda: caller.send(None))
        except Timeout as error:
            raise WandbError("another process is sending it") from error
        caller.send(done)


def _complete(directory: Path, group: str | None, moved: Callable[[], None]) -> Synced:
    """Send what W&B lacks of an ended run, and note it in the record on disk."""
    record = RunRecord.read(directory)
    rows, noted = read_history(directory, record.history_digest), record.wandb
    now = WandbFacts(last_step=0) | noted | place_of(record, group)
    record.wandb = now | WandbFacts(id=noted.id or record.run_id, mode="online")
    there = _Shown.of(record, directory, rows)
    if there.absent == ():
        done = Synced(0, there.url, was_complete=True)
    else:
        num_sent = _send(record, directory, rows, there, moved)
        for pause_s in _ARRIVALS_S:
            time.sleep(pause_s)
            there = _Shown.of(record, directory, rows)
            if there.absent == ():
                break
        if there.absent is None:
            raise WandbError("the server took everything, but does not show all of it")
        for file in directory.glob("wandb/offline-run-*/*.wandb"):
            file.with_name(f"{file.name}.synced").touch()  # as `wandb sync` does, which would send it (no call in 0.31)
        done = Synced(num_sent, there.url, lacking=there.absent)
    sent = WandbFacts(url=done.url, last_step=rows[-1][STEP] if rows else 0)
    record.wandb = replace(record.wandb | sent, error=None)
    if record.wandb != noted:
        record.write(directory)
    return done


def send_lost(place: Path, directories: Sequence[Path], wandb: WandbAddress) -> str | None:
    """Send for a while what W&B has lost of runs that have just ended below ``place``; returns a line for the user."""
    lost = [path for path in directories if RunRecord.read(path).wandb.error is not None]
    if not lost:
        return None
    limit_s = _AFTER_S + (finish_timeout_s() or 0)
    sent, over_at, failure = 0, time.monotonic() + limit_s, ""

    def on_message(done: Synced | None) -> None:
        nonlocal sent, failure
        sent += done is not None
        failure = failure or ("it does not show every file" if done is not None and done.lacking else "")
        if time.monotonic() > over_at:
            raise WandbError(f"not done in {limit_s:.0f} s")

    try:
        runs = [(path, None) for path in lost]
        wandb.call(complete_runs, runs, ALIVE_S, silence_s=min(_SILENT_S, limit_s), on_message=on_message)
    except (WandbError, RecordError, OSError, KeyboardInterrupt) as error:
        failure = str(error) or "interrupted"
    rest = f" ({failure}); `ampsweep sync {place}` sends the rest" if failure else ""
    return f"W&B: {sent} of {plural(len(lost), 'lost run')} sent after all{rest}"


def silence_limit_s(runs: Iterable[tuple[Path, RunRecord]]) -> float:
    """Seconds that a run may take: a minute, and a second per MiB of the largest artifact."""
    paths = (kept_artifact(record, directory) for directory, record in runs)
    files = (file for path in paths if path is not None for file in (path, *path.rglob("*")))
    return _RUN_S + max((file.stat().st_size for file in files), default=0) / 2**20


def place_of(record: RunRecord, group: str | None) -> WandbFacts:
    """The run's place on W&B; ``group`` is for a run that was never meant for W&B."""
    return record.wandb if record.wandb.project is not None else place_here(tracking_of(record), group)


@dataclass(frozen=True)
class _Shown:
    url: str = ""
    steps: Container[int] = ()
    absent: tuple[str, ...] | None = None  # files that it lacks; None if it lacks more than files
    media: Mapping[str, Path] = field(default_factory=dict)  # images and tables among them, and where they are here

    @classmethod
    def of(cls, record: RunRecord, directory: Path, rows: Rows) -> "_Shown":
        there = remote_run(run_path(record.wandb, str(record.wandb.id)))
        if there is None:
            return cls()
        found, summary = steps_on(there), there.summary_metrics
        has_state = (there.state == "finished") == (record.status in OUTCOMES) and there.state != "running"
        has_status = summary.get("status") == record.status
        # The prediction of a run whose process died is made after its end.
        is_predicted = record.prediction is None or "prediction" in summary
        is_complete = has_state and has_status and is_predicted and all(row[STEP] in found for row in rows)
        if not is_complete:
            return cls(there.url, found)
        media = _absent_media(there, directory, rows)
        return cls(there.url, found, (*_absent(there, record, directory), *media), media)


def _absent(there: "Run", record: RunRecord, directory: Path) -> tuple[str, ...]:
    # A checkpoint can be too large to compare.
    import wandb

    lacking = [] if _has_record(there, record) else [RECORD_NAME]
    if kept_artifact(record, directory) is not None:
        name = artifact_name(there.id)
        if not wandb.Api(timeout=ASK_S).artifact_exists(f"{there.entity}/{there.project}/{name}:latest"):
            lacking.append(name)
    return tuple(lacking)


def _absent_media(there: "Run", directory: Path, rows: Rows) -> dict[str, Path]:
    """Find images and tables whose row is there and they are not, by their names there."""
    own = {row[STEP]: row for row in rows if any(key.startswith(MEDIA) for key in row)}
    absent: dict[str, Path] = {}
    for sent in there.scan_history(use_cache=False) if own else ():
        for key, paths in own.get(sent.get(STEP), {}).items():
            if key.startswith(MEDIA) and isinstance(value := sent.get(key), Mapping):
                names = value.get("filenames") or [value["path"]]
                absent |= {name: directory / path for name, path in zip(names, paths, strict=False)}
    known = {file.name for file in there.files()} if absent else ()
    return {name: path for name, path in absent.items() if name not in known and path.is_file()}


def _has_record(there: "Run", record: RunRecord) -> bool:
    """Return True if the server has the record of this end of the run."""
    import wandb

    with TemporaryDirectory() as here:
        try:
            for file in there.files([RECORD_NAME]):
                file.download(root=here, replace=True).close()
            sent = json.loads((Path(here) / RECORD_NAME).read_bytes())
        except (ValueError, OSError, wandb.Error):  # storage may refuse downloads, too
            return False
    return bool((sent["status"], sent["ended_at"]) == (record.status, record.ended_at))


def _send(record: RunRecord, directory: Path, rows: Rows, there: _Shown, moved: Callable[[], None]) -> int:
    """Send the end of the run, and the rows and media that are not ``there``; returns the number of rows."""
    settings = run_settings(record.wandb, tracking_of(record).tags)
    # This machine's metadata and code are not those of the training. The first two settings are private, too.
    settings.x_disable_meta, settings.x_save_requirements, settings.disable_git = True, False, True
    run = open_run(record, directory, settings)
    num_sent = 0
    for number, row in enumerate(rows):
        if number % _ROWS == 0:
            moved()
        if row[STEP] not in there.steps:
            run.log(as_sent(row, directory))
            num_sent += 1
    for name, path in there.media.items():
        place = Path(run.dir) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        run.save(place, base_path=run.dir, policy="now")
    close_run(run, record, directory)
    return num_sent
