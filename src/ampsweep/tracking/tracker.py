"""The tracker of a run while it trains: it writes the history file, which W&B follows.

A row is written to the history file and nowhere else. Whatever shows the run elsewhere reads the file, so that it can
be late and lost without missing a row, and costs a step nothing.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import STEP
from ampsweep.record import (
    HISTORY_NAME,
    NO_ROOM,
    RunRecord,
    history_digest,
    history_line,
    repair_history,
    write_atomically,
)
from ampsweep.tracking.wandb.follow import check
from ampsweep.tracking.wandb.follower import WandbFollower
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress, WandbWork
from ampsweep.tracking.wandb.run_settings import wanted_mode

_CHECK_S: Final = 30.0
"""The time that the W&B process may take for a check; a second at most, as a rule, once it has imported wandb."""


class Tracker:
    """Appends a run's rows to its `history.jsonl`, and lets a ``follower``, if there is one, show them elsewhere.

    A row is one line of strict JSON, handed to the operating system whole before `log` returns, so that it survives the
    death of the process; not synced to the disk, so a crash of the machine can take the last rows. While the disk is
    full rows wait in memory.

    A row that was logged once stays as it is: W&B, which has it too, takes no second one. A resumed run therefore goes
    through the steps after its checkpoint without logging them again.
    """

    def __init__(self, follower: WandbFollower | None = None) -> None:
        self.reached = 0
        """Last step that an earlier process of this run logged."""
        self._follower = follower
        self._file: FileIO | None = None
        self._waiting = b""
        """Rows, or a part of one, that are not in the file yet."""
        self._last_step = 0

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Begin the run that lives in ``directory``, which exists: one that starts from nothing has no rows.

        ``resume_after`` is the last step of the checkpoint the run continues from; None where it starts from nothing.
        Where the history cannot be opened the follower stays unstarted; `finish` is for both all the same.

        Raises:
            RecordError: the history is damaged or has been changed, is no file, or may not be read.
        """
        path = directory / HISTORY_NAME
        if resume_after is not None:
            self.reached = repair_history(directory, record.history_digest).last_step
        elif path.exists():
            write_atomically(path, "")
        record.history_digest = None
        self._last_step = resume_after or 0
        self._file = path.open("ab", buffering=0)
        if self._follower is not None:
            self._follower.start(record, directory, self.reached)

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Write the metrics of one step, without the step axis. Steps only grow."""
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
        """Close the history, note its digest, and have the follower end the run with its final status and figures.

        Raises:
            OSError: the disk is full, and rows that have waited for room are lost; the follower has ended nevertheless.
        """
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
    config: TrackingConfig,
    group: str | None,
    say: Callable[[str], None],
    wandb: WandbAddress | None = None,
    on_stop: Callable[[str], None] = lambda reason: None,
) -> Tracker:
    """The tracker of a run, which W&B follows unless it is disabled; see `WandbFollower` for the arguments.

    Raises:
        ValueError: there is no such mode.
    """
    if wanted_mode(config)[0] == "disabled":
        return Tracker()
    return Tracker(WandbFollower(config, wandb, group=group, say=say, on_stop=on_stop))


class TrackingCheck:
    """Asks whether W&B would refuse a run, in a process of the one at an address, beside other checks.

    The server is asked too, which may refuse the API key or the entity. One that cannot be reached, or takes longer to
    answer than a training should wait, refuses nothing.
    """

    def __init__(self, config: TrackingConfig, wandb: WandbAddress) -> None:
        self._config = config
        self._work: WandbWork | None = None
        if config.mode != "disabled":
            with suppress(OSError, EOFError):  # the process has been killed: it refuses nobody
                self._work = wandb.begin(check, config)

    def require(self) -> None:
        """Wait for the answer.

        Raises:
            ValueError: a tracking mode that is unknown or impossible here, a project, entity or tag W&B does not take,
                or what the server refuses.
        """
        mode, _ = wanted_mode(self._config)
        if self._work is None or mode == "disabled":
            return
        try:
            refused = self._work.result(_CHECK_S, lambda message: None)
        except WandbError:  # the process has been killed, or hangs: it refuses nobody
            return
        if refused is not None:
            raise ValueError(refused)
