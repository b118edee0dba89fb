"""The process behind `wandb_process`: it tracks one run after another, from their history files."""

import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from threading import Event, Lock, Thread
from typing import Any, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import STEP
from ampsweep.record import HISTORY_NAME, history_row
from ampsweep.tracking.history import HistoryFile
from ampsweep.tracking.wandb_core import end_wandb, lost_errors
from ampsweep.tracking.wandb_mode import Mode, resolve_mode
from ampsweep.tracking.wandb_process import KEY_BYTES, Done, Finish, Open, Opened, Prepare, Start
from ampsweep.tracking.wandb_run import WandbTracker

_EVERY_S: Final = 0.5
"""How often new rows are looked for."""

_IMPORTS: Final = ("wandb", "wandb.apis.public", "requests", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
"""What the first wandb.init imports, together half a second; one that is not there is left out."""


def main() -> None:
    """Serve one client after another until the process at the other end of stdin is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    key = sys.stdin.buffer.read(KEY_BYTES)
    if len(key) < KEY_BYTES:
        return
    busy, served = Lock(), Event()
    with Listener(authkey=key) as listener:
        print(listener.address, flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout has said what it was for
        Thread(target=_end_with_parent, args=(busy, served), name="parent", daemon=True).start()
        _import_wandb()
        service = _Service()
        while True:
            # A client that goes away is not our fault, and a stranger is no client.
            with suppress(EOFError, OSError, AuthenticationError), listener.accept() as client, busy:
                served.set()
                service.serve(client)


def _end_with_parent(busy: Lock, served: Event) -> None:
    sys.stdin.buffer.read()
    with busy:
        if served.is_set():
            end_wandb()
        os._exit(0)  # the other thread waits for clients, who will not come


def _import_wandb() -> None:
    gc.disable()
    for name in _IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


class _Service:
    """Answers what clients send; see the messages in `wandb_process`."""

    def __init__(self) -> None:
        self._modes: list[tuple[TrackingConfig, tuple[Mode, str | None]]] = []

    def serve(self, client: "Connection[Any, Any]") -> None:
        """One client, to its end."""

        def say(line: str) -> None:
            with suppress(OSError):  # nobody is there to be told
                client.send(line)

        opening: Prepare | Open = client.recv()
        history = HistoryFile()
        try:
            mode, line = self._mode(opening.config)
            if isinstance(opening, Prepare):
                if mode != "disabled":
                    _start_core()
                return
            if mode == "disabled":
                client.send(Opened())
                return
            tracker = WandbTracker(opening.config, mode, group=opening.group, say=say, history=history)
        except ValueError as error:
            client.send(Opened(refusal=str(error)))
            return
        client.send(Opened(mode, line))
        _track(client, tracker, history)

    def _mode(self, config: TrackingConfig) -> tuple[Mode, str | None]:
        """`resolve_mode`, asked once for each config, because to ask ends a wandb-core that was started for a run."""
        for known, mode in self._modes:
            if known == config:
                return mode
        self._modes.append((config, resolve_mode(config)))
        return self._modes[-1][1]


def _start_core() -> None:
    """What a run waits for otherwise, a fifth of a second; a failure shows again where the run is started."""
    import wandb

    with suppress(*lost_errors()):
        wandb.setup(settings=wandb.Settings(silent=True))


def _track(client: "Connection[Any, Any]", tracker: WandbTracker, history: HistoryFile) -> None:
    start: Start = client.recv()
    record, history.reached = start.record, start.reached
    tracker.start(record, start.directory, resume_after=start.resume_after)
    client.send(Done(record.wandb))
    finish = _follow(client, tracker, start)
    if finish is not None:
        wandb, record = record.wandb, finish.record
        record.wandb = wandb
    tracker.finish(record)
    client.send(Done(record.wandb))


def _follow(client: "Connection[Any, Any]", tracker: WandbTracker, start: Start) -> Finish | None:
    """Log the rows of the run's history until it is to be finished (None: its process has died)."""
    finish: Finish | None = None
    with (start.directory / HISTORY_NAME).open("rb") as history:
        over = False
        while not over:
            over = client.poll(_EVERY_S)
            if over:
                with suppress(EOFError, OSError):
                    finish = client.recv()
            while (line := history.readline()).endswith(b"\n"):
                row = history_row(line.decode())
                tracker.log(row, int(row.pop(STEP)))
            history.seek(-len(line), os.SEEK_CUR)  # of a line that is still being written
    return finish
