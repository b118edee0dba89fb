"""The mirror of a run on W&B: it follows the run's history file while it trains, as long as W&B can be reached."""

import itertools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, BinaryIO, Final

from filelock import FileLock, Timeout

from ampsweep.metrics import STEP
from ampsweep.record import HISTORY_NAME, history_row, read_history
from ampsweep.tracking.wandb.core import CoreLimit, end_wandb, kill_wandb_core
from ampsweep.tracking.wandb.library import NO_ANSWER, first_line, lost_errors
from ampsweep.tracking.wandb.outage import GivenUpError
from ampsweep.tracking.wandb.process_messages import SYNC_LATER, Done, Finish, Start, Started, Stopped
from ampsweep.tracking.wandb.run import WandbRun

_EVERY_S: Final = 0.5
"""The pause between two looks for new rows."""

_LOOK_S: Final = 0.05
"""The pause between two looks at how it goes, where somebody may be waiting."""

_NOTICE_S: Final = 5.0
"""The time that W&B may take to begin before the user is told."""

_BEGIN_S: Final = {"online": 10.0, "offline": 60.0}
"""The time that W&B may take to begin, from the run's start on, where that may succeed: a server takes connections, or
only wandb-core on this machine is needed. A run that trains for longer waits for no more than its grace."""

_ROWS_S: Final = 20.0
_LAST_ROWS_S: Final = 1.0
"""The time that wandb-core may take for a row, while the run trains and after its end: as a rule none."""

_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 900.0
"""Pause after a loss, doubled each time; wandb leaves a folder for every try."""

_AGAIN: Final = 2 / 3
"""The share of its grace that is left to a run that has ended for a second try: the first has taken time, too."""


def sending_lock(directory: Path) -> FileLock:
    """The lock of the one process that sends the run in ``directory``; it is released with that process, if killed."""
    folder = directory / "wandb"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / "sending.lock")


class WandbMirror:
    """The service to one client of the W&B process, from its `Start` to the answer to its `Finish`.

    W&B is begun beside the training, which waits for nothing, and begun again after a loss; rows come from the history
    file, so that none is lost in between. Once the training has ended it waits for what W&B takes without trouble.
    """

    def __init__(self, client: "Connection[Any, Any]", run: WandbRun, start: Start, *, grace_s: float) -> None:
        """``grace_s``: the seconds that a run that has ended waits for W&B to begin, however hopeless."""
        self._client, self._sends, self._grace_s = client, Lock(), grace_s
        self._run, self._record, self._directory = run, start.record, start.directory
        self._over, self._since_s = Event(), time.monotonic()
        self._has_begun = self._gave_up = False
        self._lost: str | None = None
        self._limit: CoreLimit | None = None

    def serve(self) -> None:
        """Mirror the run until it has ended and W&B has as much of it as it takes in time."""
        Thread(target=self._hear, name="training", daemon=True).start()
        with self._locked() as is_ours:
            if is_ours:
                self._mirror()
        facts = self._record.wandb
        if self._lost is not None:
            facts.error = self._lost
            if not self._has_begun and self._run.mode == "online":
                facts.mode, facts.reason = "offline", self._lost
            self.send(f"W&B: lost ({self._lost}); {SYNC_LATER}")
        self.send(Done(facts))

    def send(self, message: object) -> None:
        """Send a message to the client, from any thread; the client may be gone."""
        with self._sends, suppress(OSError):
            self._client.send(message)

    def _hear(self) -> None:
        """Wait for the end of the run, which may be that of its process."""
        with suppress(EOFError, OSError):
            finish: Finish = self._client.recv()
            facts, self._record = self._record.wandb, finish.record
            facts.stopped = finish.record.wandb.stopped
            self._record.wandb = facts
        self._over.set()
        if self._limit is not None:
            self._limit.change(_LAST_ROWS_S)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock, which is waited for as long as the run trains; yield False where another process has it."""
        lock = sending_lock(self._directory)
        try:
            while True:
                with suppress(Timeout):
                    lock.acquire(timeout=0)
                if lock.is_locked or self._over.wait(_EVERY_S):
                    break
            if not lock.is_locked:
                self._lost = "another process is sending the run"
            yield lock.is_locked
        finally:
            lock.release()

    def _mirror(self) -> None:
        pause_s = _FIRST_RETRY_S
        for num_tries in itertools.count():
            is_last = self._over.is_set()
            if is_last and num_tries:
                self._grace_s *= _AGAIN
            try:
                self._attempt()
            except lost_errors() as error:
                if not self._gave_up:
                    self._lost = first_line(error)
                # Once nothing was heard of the server, there is no point in trying again; errors may pass.
                self._gave_up |= isinstance(error, TimeoutError) or (
                    isinstance(error, GivenUpError) and error.is_silent
                )
                self._run.abandon()
                self._run.seen.given_up = self._lost
            else:
                end_wandb()
                self._run.seen.given_up = None
                return
            if is_last or self._gave_up:
                return
            self._over.wait(pause_s)
            pause_s = min(2 * pause_s, _LAST_RETRY_S)

    def _attempt(self) -> None:
        """Keep the run on W&B up to date from here to its end. Raises `lost_errors`."""
        steps = [row[STEP] for row in read_history(self._directory)]
        with self._guarded():
            self._run.open(self._record, self._directory, steps, on_stop=lambda: self.send(Stopped()))
        if self._gave_up:  # in the moment in which it began, so that its wandb-core is gone
            raise GivenUpError(self._lost or NO_ANSWER, is_silent=True)
        self._lost = None
        self._has_begun = True
        self.send(Started(replace(self._record.wandb)))
        with (self._directory / HISTORY_NAME).open("rb") as history, CoreLimit(_ROWS_S) as self._limit:
            while not self._over.wait(_EVERY_S):
                self._send_rows(history)
            self._limit.change(_LAST_ROWS_S)
            self._send_rows(history)
        self._lost = self._run.close(self._record, self._directory)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Give up what does not get through inside: soon after the run's end where something is wrong, else late."""
        settled = Event()
        guard = Thread(target=self._guard, args=(settled,), name="opening", daemon=True)
        guard.start()
        try:
            yield
        finally:
            settled.set()
            guard.join()

    def _guard(self, settled: Event) -> None:
        began, noticed = time.monotonic(), False
        while not (self._over.wait(_LOOK_S if time.monotonic() - began < 1.0 else _EVERY_S) or settled.is_set()):
            if not noticed and self._run.trouble() is not None:
                noticed = True
                self.send(Started(replace(self._record.wandb)))  # as far as it is known: nobody is to wait for more
            if time.monotonic() - began > _NOTICE_S:
                began = math.inf
                self.send(f"W&B: {self._run.trouble() or NO_ANSWER}; the training goes on, {SYNC_LATER}")
        over_at = time.monotonic()
        with self._run.listening():
            while not settled.wait(_LOOK_S):
                trouble = self._run.trouble()
                wait_s = self._grace_s
                if trouble is None and not self._has_begun:
                    wait_s = max(wait_s, _BEGIN_S[self._run.mode] - (over_at - self._since_s))
                if time.monotonic() - over_at > wait_s:
                    self._gave_up, self._lost = True, self._lost or trouble or NO_ANSWER
                    kill_wandb_core()
                    return

    def _moved(self) -> None:
        if self._limit is not None:
            self._limit.moved()

    def _send_rows(self, history: BinaryIO) -> None:
        while (line := history.readline()).endswith(b"\n"):
            row = history_row(line.decode())
            step = int(row.pop(STEP))
            if self._run.log(row, step):
                self._record.wandb.last_step = step
            self._moved()
        self._moved()
        history.seek(-len(line), os.SEEK_CUR)  # of a line that is still being written
