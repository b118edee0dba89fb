"""The tracker of a run while it trains: it writes the history file, which W&B follows.

A row is written to the history file and nowhere else. Whatever shows the run elsewhere reads the file, so that it can
be late, lost and started again without missing a row, and costs a step nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import STEP
from ampsweep.record import (
    HISTORY_NAME,
    NO_ROOM,
    RowsDigest,
    RunRecord,
    Stretch,
    history_line,
    repair_history,
    write_atomically,
)
from ampsweep.tracking.wandb.follow import check
from ampsweep.tracking.wandb.follower import WandbFollower
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess
from ampsweep.tracking.wandb.run_settings import wanted_mode

_CHECK_S: Final = 30.0
"""The time that the W&B process may take for a check; a second at most, as a rule, once it has imported wandb."""


class HistoryFile:
    """The history of a run while it trains: each row is appended to `history.jsonl`.

    A row is one line of strict JSON, handed to the operating system whole before `log` returns, so that it survives the
    death of the process; not synced to the disk, so a crash of the machine can take the last rows. While the disk is
    full rows wait in memory.

    A row that was logged once stays as it is: W&B, which has it too, takes no second one. A resumed run therefore goes
    through the steps after its checkpoint without logging them again.
    """

    def __init__(self) -> None:
        self.reached = 0
        """Last step that an earlier process of this run logged."""
        self._file: FileIO | None = None
        self._earlier: tuple[Stretch, ...] = ()
        self._begin = self._end = 0
        """The bytes of this process's stretch."""
        self._digest = RowsDigest()
        self._waiting = b""
        """Rows, or a part of one, that are not in the file yet."""
        self._last_step = 0

    @property
    def stretches(self) -> list[Stretch]:
        """The digests of all rows in the file; those of earlier processes are as `start` was given them."""
        own = Stretch(end=self._end, blake2b=str(self._digest))
        return [*self._earlier, own] if self._end != self._begin else [*self._earlier]

    def start(self, directory: Path, *, resume_after: int | None, stretches: Sequence[Stretch] = ()) -> None:
        """Open the file: a resumed run keeps its intact rows, a run that starts from nothing has none.

        ``resume_after`` is the last step of the checkpoint that the run continues from; None without one.
        ``stretches`` are the digests of rows from before.

        Raises:
            RecordError: the path is no file, or may not be read.
        """
        path = directory / HISTORY_NAME
        if resume_after is not None:
            self.reached = repair_history(directory).last_step
            self._earlier = tuple(stretches)
            content = path.read_bytes() if path.exists() else b""
            self._begin, self._end = stretches[-1].end if stretches else 0, len(content)
            self._digest = RowsDigest(content[self._begin :])
        elif path.exists():
            write_atomically(path, "")
        self._last_step = resume_after or 0
        self._file = path.open("ab", buffering=0)

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

    def finish(self) -> None:
        """Close the file. Does nothing the second time, or without a start.

        Raises:
            OSError: the disk is full, and rows that have waited for room are lost.
        """
        if self._file is None:
            return
        try:
            self._write()
        except OSError as error:
            num_rows = self._waiting.count(b"\n")
            raise OSError(error.errno, f"{error.strerror}: {num_rows} rows are lost", self._file.name) from error
        finally:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        assert self._file is not None
        while self._waiting:  # an unbuffered write may take a part, on a nearly full disk
            num_written = self._file.write(self._waiting)
            self._digest.update(self._waiting[:num_written])
            self._end += num_written
            self._waiting = self._waiting[num_written:]


class Tracker:
    """Writes a run's rows to the history file, and lets a ``follower``, if there is one, show them elsewhere."""

    def __init__(self, follower: WandbFollower | None = None) -> None:
        self._history, self._follower = HistoryFile(), follower

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Begin the run that lives in ``directory``, which exists.

        ``resume_after`` is the last step of the checkpoint the run continues from; None where it starts from nothing.
        Where the history cannot be opened the follower stays unstarted; `finish` is for both all the same.

        Raises:
            RecordError: the history is no file, or may not be read.
        """
        self._history.start(directory, resume_after=resume_after, stretches=record.history)
        self.add_digests(record)
        if self._follower is not None:
            self._follower.start(record, directory, self._history.reached)

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Write the metrics of one step, without the step axis. Steps only grow."""
        self._history.log(row, step)

    def add_digests(self, record: RunRecord) -> None:
        """Note in the record the digests of the rows so far; without a start it keeps those that it has."""
        record.history = self._history.stretches or record.history

    def finish(self, record: RunRecord) -> None:
        """Close the history, then have the follower end the run with its final status, summary and proof.

        Raises:
            OSError: the disk is full, and rows are lost; the follower has ended nevertheless.
        """
        try:
            self._history.finish()
        finally:
            self.add_digests(record)
            if self._follower is not None:
                self._follower.finish(record)


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


def check_tracking(config: TrackingConfig, wandb: WandbAddress | None) -> None:
    """Refuse a run that W&B would refuse, in a process of the one at the address ``wandb``, or of its own.

    The server is asked too, which may refuse the API key or the entity. One that cannot be reached, or takes longer to
    answer than a training should wait, refuses nothing.

    Raises:
        ValueError: a tracking mode that is unknown or impossible here, a project, entity or tag W&B does not take, or
            what the server refuses.
    """
    if wanted_mode(config)[0] == "disabled":
        return
    with ExitStack() as own:
        address = wandb or own.enter_context(WandbProcess()).address
        try:
            refused = address.call(check, config, silence_s=_CHECK_S)
        except WandbError:  # the process has been killed, or hangs: it refuses nobody
            return
    if refused is not None:
        raise ValueError(refused)
