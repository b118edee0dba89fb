"""The tracker of a run writes each row to the history file only; W&B follows that file, at no cost to a step."""

from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import STEP
from ampsweep.records import HISTORY_NAME, NO_ROOM, RunRecord, history_digest, history_line, repair_history
from ampsweep.tracking.wandb.follower import Say, WandbFollower
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress, WandbWork
from ampsweep.tracking.wandb.run_settings import wanted_mode
from ampsweep.tracking.wandb.send_history import check

_CHECK_S: Final = 30.0  # limit of a check by the W&B process, which rarely takes more than a second after its imports


class Tracker:
    """Appends a run's rows to its `history.jsonl`, which the optional follower shows elsewhere. `log` hands a row to
    the operating system, so it survives the process but not a crash of the machine (no fsync). While the disk is full
    rows wait in memory. A resumed run does not log the steps after its checkpoint again: W&B takes no second row."""

    def __init__(self, follower: WandbFollower | None = None) -> None:
        self.reached = 0  # last step logged by an earlier process of this run
        self._follower = follower
        self._file: FileIO | None = None
        self._waiting = b""  # rows, or a part of a row, that are not in the file yet
        self._last_step = 0

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Open the history in the existing ``directory``, after the last step of a checkpoint or from nothing; call
        `finish` even if this raises. Raises RecordError if the history is damaged, changed, no file, or unreadable."""
        path = directory / HISTORY_NAME
        if resume_after is not None:
            self.reached = repair_history(directory, record.history_digest).get(STEP, 0)
        record.history_digest = None
        self._last_step = resume_after or 0
        self._file = path.open("wb" if resume_after is None else "ab", buffering=0)
        if self._follower is not None:
            self._follower.start(record, directory, self.reached)

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Write the metrics of a step, without the step itself; steps only grow."""
        assert self._file is not None, "log before start or after finish"
        assert STEP not in row, "the step axis is not a metric"
        assert step > self._last_step, f"step {step} after step {self._last_step}"
        self._last_step = step
        if step <= self.reached:
            return
        self._waiting += history_line({STEP: step, **row}).encode()
        try:
            self._write()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def finish(self, record: RunRecord) -> None:
        """Close the history, note its digest in the record, and let the follower end the run in any case. Raises
        OSError if the disk is full, so that the waiting rows are lost."""
        try:
            self._close(record)
        finally:
            if self._follower is not None:
                self._follower.finish(record)

    def _close(self, record: RunRecord) -> None:
        if self._file is None:
            return
        path = Path(str(self._file.name))
        try:
            self._write()
        except OSError as error:
            num_rows = self._waiting.count(b"\n")
            raise OSError(error.errno, f"{error.strerror}: {num_rows} rows are lost", str(path)) from error
        finally:
            self._file.close()
            self._file = None
            record.history_digest = history_digest(path.parent)

    def _write(self) -> None:
        assert self._file is not None
        while self._waiting:  # an unbuffered write may take a part, on a nearly full disk
            self._waiting = self._waiting[self._file.write(self._waiting) :]


def make_tracker(
    config: TrackingConfig, group: str | None, say: Say, wandb: WandbAddress | None, on_stop: Say
) -> Tracker:
    """Make the tracker of a run, followed by W&B unless disabled (see `WandbFollower`); ValueError: unknown mode."""
    if wanted_mode(config)[0] == "disabled":
        return Tracker()
    return Tracker(WandbFollower(config, wandb, group=group, say=say, on_stop=on_stop))


class TrackingCheck:
    """Checks in the W&B process that W&B and a server, unless it is lost or slow, would take a run."""

    def __init__(self, config: TrackingConfig, wandb: WandbAddress) -> None:
        self._config = config
        self._work: WandbWork | None = None
        if config.mode != "disabled":
            with suppress(OSError, EOFError):  # a killed process refuses nothing
                self._work = wandb.begin(check, config)

    def require(self) -> None:
        """Raise ValueError for an impossible mode, a name that W&B does not take, or the server's refusal."""
        mode, _ = wanted_mode(self._config)
        if self._work is None or mode == "disabled":
            return
        try:
            refused = self._work.result(_CHECK_S, lambda message: None)
        except WandbError:  # a killed or hanging process refuses nothing
            return
        if refused is not None:
            raise ValueError(refused)
