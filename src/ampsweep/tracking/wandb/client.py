"""The training's side of W&B: it leaves everything to a process beside it."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.history import HistoryFile
from ampsweep.tracking.wandb.messages import SENDS, Done, Finish, Open, Opened, Start, Started, Stopped
from ampsweep.tracking.wandb.place import finish_timeout_s
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess

_START_S: Final = 0.4
"""How long a start waits for W&B: about twice what it takes with a quick server, or without one."""

_FINISH_S: Final = 60.0
"""How long an end waits for the W&B process, which is to be quicker by itself, beyond what the user says."""


class WandbClient:
    """Tracker that leaves its run to a W&B process, where `WandbMirror` follows the history file.

    W&B never holds up the run: its start waits for it for less than half a second, and its end for as long as W&B makes
    progress.
    """

    def __init__(
        self,
        config: TrackingConfig,
        address: WandbAddress | None,
        *,
        group: str | None,
        history: HistoryFile,
        say: Callable[[str], None],
        on_stop: Callable[[str], None],
    ) -> None:
        """At ``address``, or where there is none in a process of its own.

        ``group`` is the W&B group where neither the config nor the environment names one; ``history`` is the file that
        the rows are taken from, started before this. ``say`` takes lines for the user, ``on_stop``, in another thread,
        the reason why the run is to end.

        Raises:
            ValueError: what `check_tracking` refuses.
            OSError, EOFError: there is no such process any more.
        """
        self._history, self._say, self._on_stop = history, say, on_stop
        self._own = ExitStack()
        if address is None:
            address = self._own.enter_context(WandbProcess()).address
        try:
            self._connection = address.connect()
            self._connection.send(Open(config, group))
            opened: Opened = self._connection.recv()
            if opened.refusal is not None:
                raise ValueError(opened.refusal)
        except BaseException:
            self._own.close()
            raise
        self.mode, self.line, self._place = opened.mode, opened.line, opened.place
        self._started: SimpleQueue[Started | None] = SimpleQueue()
        self._done: SimpleQueue[Done | None] = SimpleQueue()
        self._listener = Thread(target=self._listen, name="wandb", daemon=True)
        self._is_on = False

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Have the W&B run started and fill ``record.wandb``: with its id, mode and place, and more if W&B is quick."""
        id = record.wandb.id or os.environ.get("WANDB_RUN_ID") or record.run_id
        reached = max(record.wandb.last_step or 0, self._history.reached)
        record.wandb = WandbFacts(id=id, mode=self.mode, last_step=reached, **self._place)
        self._is_on = True
        self._listener.start()
        with suppress(OSError, Empty):  # lost, which `finish` will notice, or slow
            self._connection.send(Start(record, directory.resolve()))
            started = self._started.get(timeout=_START_S)
            if started is not None:
                record.wandb = started.wandb

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Costs nothing here: the W&B process reads the row where the history file has put it."""

    def finish(self, record: RunRecord) -> None:
        """Send status, figures and files, end the W&B run, and note in ``record.wandb`` how it went."""
        if self._is_on:
            self._is_on = False
            self._finish(record)
            self._listener.join(_START_S)
        if not self._listener.is_alive():
            self._connection.close()
        self._own.close()

    def _finish(self, record: RunRecord) -> None:
        done = None
        with suppress(OSError, Empty):
            self._connection.send(Finish(record))
            done = self._done.get(timeout=_FINISH_S + 2 * (finish_timeout_s() or 0))
        if done is None:
            record.wandb.error = "the W&B process ended"
            self._say(f"W&B: lost (its process ended); {SENDS}")
        else:
            record.wandb = done.wandb

    def _listen(self) -> None:
        """Hand on what the W&B process has to say, to whom it concerns."""
        with suppress(EOFError, OSError):
            while True:
                match self._connection.recv():
                    case Started() as started:
                        self._started.put(started)
                    case Done() as done:
                        self._done.put(done)
                    case Stopped():
                        self._on_stop("a stop on W&B")
                    case str() as line:
                        self._say(line)
        self._started.put(None)
        self._done.put(None)
