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
    busy = Lock()
    with Listener(authkey=key) as listener:
        print(listener.address, flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout has said what it was for
        served = Event()
        Thread(target=_end_with_parent, args=(busy, served), name="parent", daemon=True).start()
        gc.disable()
        for name in _IMPORTS:
            with suppress(ImportError):
                importlib.import_module(name)
        gc.freeze()
        gc.enable()
        modes: list[tuple[TrackingConfig, tuple[Mode, str | None]]] = []
        while True:
            # A client that goes away is not our fault, and a stranger is no client.
            with suppress(EOFError, OSError, AuthenticationError), listener.accept() as client, busy:
                served.set()
                _serve(client, modes)


def _end_with_parent(busy: Lock, served: Event) -> None:
    sys.stdin.buffer.read()
    with busy:
        if served.is_set():
            end_wandb()
        os._exit(0)  # the other thread waits for clients, who will not come


def _serve(client: "Connection[Any, Any]", modes: list[tuple[TrackingConfig, tuple[Mode, str | None]]]) -> None:
    def say(line: str) -> None:
        with suppress(OSError):  # nobody is there to be told
            client.send(line)

    opening: Prepare | Open = client.recv()
    if isinstance(opening, Prepare):
        _start_core()
        return
    history = HistoryFile()
    try:
        mode, line = _mode(opening.config, modes)
        if mode == "disabled":
            client.send(Opened())
            return
        tracker = WandbTracker(opening.config, mode, group=opening.group, say=say, history=history, keeps_core=True)
    except ValueError as error:
        client.send(Opened(refusal=str(error)))
        return
    client.send(Opened(mode, line))
    start: Start = client.recv()
    record, history.reached = start.record, start.reached
    tracker.start(record, start.directory, resume_after=start.resume_after)
    client.send(Done(record.wandb))
    order = _follow(client, tracker, start)
    if order is not None:
        wandb, record = record.wandb, order.record
        record.wandb = wandb
    tracker.finish(record)
    client.send(Done(record.wandb))


def _mode(
    config: TrackingConfig, known: list[tuple[TrackingConfig, tuple[Mode, str | None]]]
) -> tuple[Mode, str | None]:
    """`resolve_mode`, asked once for each config: the answer ends wandb, and with it the core that was kept."""
    for other, mode in known:
        if other == config:
            return mode
    mode = resolve_mode(config)
    known.append((config, mode))
    return mode


def _start_core() -> None:
    """What the first run waits for otherwise, a fifth of a second; a failure shows again where that run is started."""
    import wandb

    with suppress(*lost_errors()):
        wandb.setup(settings=wandb.Settings(silent=True))


def _follow(client: "Connection[Any, Any]", tracker: WandbTracker, start: Start) -> Finish | None:
    """Log the rows of the run's history until it is to be finished (None: its process has died)."""
    order: Finish | None = None
    with (start.directory / HISTORY_NAME).open("rb") as history:
        over = False
        while not over:
            over = client.poll(_EVERY_S)
            if over:
                with suppress(EOFError, OSError):
                    order = client.recv()
            while (line := history.readline()).endswith(b"\n"):
                row = history_row(line.decode())
                tracker.log(row, int(row.pop(STEP)))
            history.seek(-len(line), os.SEEK_CUR)  # of a line that is still being written
    return order
