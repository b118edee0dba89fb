"""The training's side of the W&B process beside it, which may die, hang or be killed at any moment."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.records import RunRecord
from ampsweep.records.sections import WandbFacts
from ampsweep.tracking.wandb.agent import STOPPED_THERE
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess, WandbWork, kill_family
from ampsweep.tracking.wandb.run_settings import finish_timeout_s, place_here
from ampsweep.tracking.wandb.send_history import Stopped, follow

SYNC_LATER: Final = "history.jsonl has every row, `ampsweep sync DIRECTORY` sends what W&B lacks"
Say = Callable[[str], None]
_POLL_S: Final = 0.01
_END_S: Final = {None: 10.0, "offline": 30.0, "online": 5.0}  # seconds at the end of a run, by mode (None: unknown)
_TROUBLE_S: Final = 1.0  # wait for a server in trouble


class WandbFollower:
    """Has a W&B process, forked from the one at `address` or its own, follow the run; the training waits for it only at
    its end, for seconds. `group` is the W&B group if neither the config nor the environment has any; `say` gets lines
    for the user, and `on_stop`, in another thread, the reason of a stop that the server requests."""

    def __init__(
        self, config: TrackingConfig, address: WandbAddress | None, *, group: str | None, say: Say, on_stop: Say
    ) -> None:
        self._config, self._address, self._group = config, address, group
        self._say, self._on_stop = say, on_stop
        self._own = ExitStack()
        self._thread = Thread(target=self._follow, name="wandb", daemon=True)
        self._work: WandbWork | None = None
        self._over = Event()
        self._is_done = False
        self._lost = ""

    def start(self, record: RunRecord, directory: Path, reached: int) -> None:
        """Begin to follow, and set ``record.wandb``; ``reached`` is the last step of earlier processes."""
        id = record.wandb.id or os.environ.get("WANDB_RUN_ID") or record.run_id
        reached = max(record.wandb.last_step or 0, reached)
        record.wandb = WandbFacts(id=id, last_step=reached) | place_here(self._config, self._group)
        self._record, self._directory, self._facts = deepcopy(record), directory.resolve(), replace(record.wandb)
        self._thread.start()

    def finish(self, record: RunRecord) -> None:
        """Write the record for the W&B process, wait seconds for it, then kill it; ``record.wandb`` has the result."""
        if self._thread.ident is not None and not self._over.is_set():
            with suppress(OSError):  # no room: the next write of the record raises it
                record.write(self._directory)
            self._over.set()
            if self._work is not None:
                self._work.tell_end()
            began = time.monotonic()
            while self._thread.is_alive() and time.monotonic() - began < self._end_s():
                self._thread.join(_POLL_S)
            if self._thread.is_alive():
                late_s = time.monotonic() - began
                if self._work is not None:
                    kill_family(self._work.pid)
                self._thread.join(_TROUBLE_S)
                self._lost = f"it had not taken all of the run {late_s:.0f} s after its end"
            facts = self._facts
            facts.stopped = facts.stopped or record.wandb.stopped
            record.wandb = facts
            if not self._is_done:
                facts.error = facts.error or self._lost
                if facts.mode == "online" and facts.url is None:
                    facts.mode = "offline"
                self._say(f"W&B: lost ({facts.error}); {SYNC_LATER}")
        self._own.close()

    def _end_s(self) -> float:
        facts, wanted_s = self._facts, finish_timeout_s()
        if facts.mode == "online" and wanted_s is not None:
            return wanted_s
        return _END_S[facts.mode] if facts.error is None else _TROUBLE_S

    def _follow(self) -> None:
        try:
            address = self._address or self._own.enter_context(WandbProcess()).address
            self._work = address.begin(follow, self._config, self._record, self._directory, os.getpid())
            if self._over.is_set():
                self._work.tell_end()
            self._facts = self._work.result(None, self._on_message)
            self._is_done = True
        except (WandbError, EOFError, OSError) as error:
            self._lost = str(error) or "its process ended"

    def _on_message(self, message: Any) -> None:
        match message:
            case WandbFacts() as facts:
                self._facts = facts
            case Stopped():
                self._on_stop(STOPPED_THERE)
            case str() as line:
                self._say(line)
