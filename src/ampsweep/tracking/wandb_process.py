"""W&B in a process of its own: neither its start nor its rows take the training's time."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Client, Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.tracking.history import HistoryFile

KEY_BYTES: Final = 32
_MAIN: Final = "import sys; sys.path[:] = {path!r}; from ampsweep.tracking.wandb_service import main; main()"
_PATIENCE_S: Final = 60.0
"""How long the process may take to end once it has nothing to do."""


@dataclass(frozen=True)
class WandbAddress:
    """Where a W&B process listens, on this machine and while it lives."""

    path: str
    key: bytes

    def prepare(self, config: TrackingConfig) -> None:
        """Have wandb-core started for a run that will come; not before that is certain, as it leaves files behind."""
        with suppress(EOFError, OSError), self.connect() as connection:
            connection.send(Prepare(config))

    def connect(self) -> "Connection[Any, Any]":
        """A connection to it; raises OSError or EOFError where it has ended."""
        return Client(self.path, authkey=self.key)


class WandbProcess:
    """A process that tracks the runs of a command, one at a time; it lives inside `with`.

    It starts while the caller goes on. Signals do not reach it: it ends when this process leaves the context or dies,
    after it has finished the run it was tracking.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"WANDB_PROGRAM": sys.argv[0], **os.environ},  # what W&B is to name as the run's program
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self._key)
        self._process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @cached_property
    def address(self) -> WandbAddress:
        """Where it listens, for any process of this machine; waits until it has started."""
        assert self._process.stdout is not None
        return WandbAddress(self._process.stdout.readline().decode().rstrip("\n"), self._key)


@dataclass(frozen=True)
class Prepare:
    """To the W&B process: `WandbAddress.prepare`."""

    config: TrackingConfig


@dataclass(frozen=True)
class Open:
    """To the W&B process: a run is to be tracked so."""

    config: TrackingConfig
    group: str | None


@dataclass(frozen=True)
class Opened:
    """Its answer: the mode, and a line that tells the user; or why it refuses."""

    mode: str = "disabled"
    line: str | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class Start:
    """To the W&B process: `Tracker.start`. From here on it reads the rows in the directory's history file."""

    record: RunRecord
    directory: Path
    resume_after: int | None
    reached: int


@dataclass(frozen=True)
class Finish:
    """To the W&B process: `Tracker.finish`."""

    record: RunRecord


@dataclass(frozen=True)
class Done:
    """Its answer to either: what the record is to say of W&B."""

    wandb: dict[str, Any]


class WandbClient:
    """Tracker that leaves its run to a W&B process, where `WandbTracker` does what it does elsewhere."""

    def __init__(
        self,
        address: WandbAddress,
        config: TrackingConfig,
        *,
        group: str | None,
        say: Callable[[str], None],
        history: HistoryFile,
    ) -> None:
        """See `WandbTracker`; ``history`` is the file that the rows are taken from.

        Raises:
            ValueError: what `resolve_mode` or `WandbTracker` refuse.
            OSError, EOFError: there is no such process any more.
        """
        self._say, self._history = say, history
        self._connection = address.connect()
        self._connection.send(Open(config, group))
        opened: Opened = self._connection.recv()
        if opened.refusal is not None:
            raise ValueError(opened.refusal)
        self.mode, self.line = opened.mode, opened.line
        self._answers: SimpleQueue[Done | None] = SimpleQueue()
        self._started = False

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Start the W&B run and fill ``record.wandb``."""
        self._started = True
        Thread(target=self._listen, name="wandb", daemon=True).start()
        self._ask(Start(record, directory.resolve(), resume_after, self._history.reached), record)

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Costs nothing here: the W&B process reads the row where the history file has put it."""

    def finish(self, record: RunRecord) -> None:
        """Send status, figures and files, end the W&B run, and note in ``record.wandb`` how it went."""
        if self._started:
            self._started = False
            self._ask(Finish(record), record)
            self._connection.close()

    def _ask(self, order: Start | Finish, record: RunRecord) -> None:
        try:
            self._connection.send(order)
            answer = self._answers.get()
        except OSError:
            answer = None
        if answer is None:
            record.wandb["error"] = "the W&B process ended"
            self._say("W&B: lost (its process ended); history.jsonl has every row")
        else:
            record.wandb = answer.wandb

    def _listen(self) -> None:
        """Hand on lines for the user as they come, and answers to whoever asked."""
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Done):
                    self._answers.put(message)
                else:
                    self._say(message)
        except (EOFError, OSError):
            self._answers.put(None)
