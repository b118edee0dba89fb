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
from ampsweep.tracking.wandb_comparison import publish
from ampsweep.tracking.wandb_core import end_wandb, first_line, lost_errors, silence_libraries
from ampsweep.tracking.wandb_messages import Open, Opened, Prepare, Publish, Published, Start
from ampsweep.tracking.wandb_mirror import WandbMirror
from ampsweep.tracking.wandb_mode import Mode, resolve_mode
from ampsweep.tracking.wandb_place import WandbPlace, finish_timeout_s
from ampsweep.tracking.wandb_process import KEY_BYTES
from ampsweep.tracking.wandb_run import WandbRun
from ampsweep.tracking.wandb_watch import Patience

_GRACE_S: Final = 0.6
"""How long a run that has ended waits for W&B to begin, where the user does not say."""

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
        silence_libraries()
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
    """Answers what clients send; see `wandb_messages`."""

    def __init__(self) -> None:
        self._modes: list[tuple[TrackingConfig, tuple[Mode, str | None]]] = []

    def serve(self, client: "Connection[Any, Any]") -> None:
        """One client, to its end."""
        opening: Prepare | Open | Publish = client.recv()
        if isinstance(opening, Publish):
            client.send(_publish(opening))
            return
        try:
            mode, line = self._mode(opening.config)
            if isinstance(opening, Prepare):
                if mode != "disabled":
                    _start_core()
                return
            if mode == "disabled":
                client.send(Opened())
                return
            place, wait_s = WandbPlace.here(opening.config, opening.group), finish_timeout_s()
            run = WandbRun(place.settings(opening.config.tags), mode, Patience() if wait_s is None else None)
        except ValueError as error:
            client.send(Opened(refusal=str(error)))
            return
        client.send(Opened(mode, line, place.facts()))
        start: Start = client.recv()
        WandbMirror(client, run, start, grace_s=_GRACE_S if wait_s is None else wait_s).serve()

    def _mode(self, config: TrackingConfig) -> tuple[Mode, str | None]:
        """`resolve_mode`, asked once for each config, because to ask ends a wandb-core that was started for a run."""
        for known, mode in self._modes:
            if known == config:
                return mode
        self._modes.append((config, resolve_mode(config)))
        return self._modes[-1][1]


def _publish(order: Publish) -> Published:
    try:
        return Published(publish(order.page, order.place.settings([]), order.directory))
    except lost_errors() as error:
        return Published(problem=first_line(error))


def _start_core() -> None:
    """What a run waits for otherwise, a fifth of a second; a failure shows again where the run is started."""
    import wandb

    with suppress(*lost_errors()):
        wandb.setup(settings=wandb.Settings(silent=True))
