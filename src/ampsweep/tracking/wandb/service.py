"""The server side of the W&B process: it tracks one run after another, from their history files."""

import gc
import importlib
import logging
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from threading import Event, Lock, Thread
from typing import Any, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.stop_signals import STOP_SIGNALS
from ampsweep.tracking.wandb.api import wandb_server
from ampsweep.tracking.wandb.comparison_run import publish
from ampsweep.tracking.wandb.core import end_wandb
from ampsweep.tracking.wandb.library import error_clause, first_line, lost_errors, silence_libraries
from ampsweep.tracking.wandb.mirror import WandbMirror
from ampsweep.tracking.wandb.outage import ONCE_MORE, Patience, SeenServer
from ampsweep.tracking.wandb.process_messages import Check, Complete, Open, Opened, Prepare, Publish, Published, Start
from ampsweep.tracking.wandb.run import WandbRun
from ampsweep.tracking.wandb.run_settings import Mode, WandbPlace, finish_timeout_s, online_login, resolve_mode
from ampsweep.tracking.wandb.server import WandbAccess, require_alive
from ampsweep.tracking.wandb.sync_run import complete

_GRACE_S: Final = 0.4
"""The time that a run that has ended waits for W&B to begin where something is wrong, and the user does not say."""

_IMPORTS: Final = ("wandb", "wandb.apis.public", "requests", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
"""The imports of the first wandb.init, together half a second; one that is not there is left out."""


def main() -> None:
    """Serve one client after another until the process at the other end of stdin is gone."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        key, expected = pickle.load(sys.stdin.buffer)
    except EOFError:
        return
    busy, served = Lock(), Event()
    with Listener(authkey=key) as listener:
        print(listener.address, flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout has said what it was for
        Thread(target=_end_with_parent, args=(busy, served), name="parent", daemon=True).start()
        _import_wandb()
        logging.raiseExceptions = False  # W&B's log on a full disk: the run itself tells of that
        silence_libraries()
        service = _Service(expected)
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
    """Answers the messages of clients; see `process_messages`."""

    def __init__(self, expected: Sequence[TrackingConfig]) -> None:
        """``expected``: the tracking settings of the runs to come, as far as known."""
        self._modes: list[tuple[TrackingConfig, tuple[Mode, str | None]]] = []
        self._accesses: dict[str | None, WandbAccess | None] = {}
        self._seen = SeenServer()
        for config in expected:
            with suppress(ValueError):  # told to whoever asks for it
                self._access(config)

    def serve(self, client: "Connection[Any, Any]") -> None:
        opening: Prepare | Check | Open | Publish | Complete = client.recv()
        match opening:
            case Publish():
                client.send(_publish(opening))
            case Complete():
                client.send(self._complete(opening))
            case Prepare():
                with suppress(ValueError):
                    if self._mode(opening.config)[0] != "disabled":
                        _start_core()
            case Check():
                client.send(Opened(refusal=self._refusal(opening.config)))
            case Open():
                self._track(client, opening)

    def _complete(self, order: Complete) -> Published:
        if self._mode(order.config)[0] != "online" or (login := online_login()) is None:
            return Published()
        try:
            require_alive(login)
            with wandb_server():
                done = complete(RunRecord.read(order.directory), order.directory, group=None)
        except ValueError as error:
            return Published(failure=str(error))
        except lost_errors() as error:
            return Published(failure=error_clause(error))
        return Published(done.url, done.refusal or ("it does not show every file" if done.lacking else None))

    def _track(self, client: "Connection[Any, Any]", opening: Open) -> None:
        try:
            mode, line = self._mode(opening.config)
            if mode == "disabled":
                client.send(Opened())
                return
            place, wait_s = WandbPlace.here(opening.config, opening.group), finish_timeout_s()
            patience = None if wait_s is not None else Patience() if self._seen.given_up is None else ONCE_MORE
            run = WandbRun(place.settings(opening.config.tags), mode, patience, self._seen)
        except ValueError as error:
            client.send(Opened(refusal=str(error)))
            return
        client.send(Opened(mode, line, place.facts()))
        start: Start = client.recv()
        grace_s = wait_s if wait_s is not None else _GRACE_S if self._seen.given_up is None else 0.0
        WandbMirror(client, run, start, grace_s=grace_s).serve()

    def _refusal(self, config: TrackingConfig) -> str | None:
        try:
            if self._mode(config)[0] != "disabled":
                WandbPlace.here(config, None).settings(config.tags)
            access = self._access(config)
        except ValueError as error:
            return str(error)
        return None if access is None else access.refusal()

    def _access(self, config: TrackingConfig) -> WandbAccess | None:
        """The question whether the server takes the run, asked once for each entity; None where there is none to ask.

        Raises:
            ValueError: as `resolve_mode`.
        """
        if self._mode(config)[0] != "online":
            return None
        entity = WandbPlace.here(config, None).entity
        if entity not in self._accesses:
            login = online_login()
            access = None if login is None else WandbAccess(login, entity or login.entity)
            self._accesses[entity] = access
            self._seen.heartbeat = None if access is None else access.heartbeat
        return self._accesses[entity]

    def _mode(self, config: TrackingConfig) -> tuple[Mode, str | None]:
        """`resolve_mode`, asked once for each config, because to ask ends a wandb-core that was started for a run."""
        for known, mode in self._modes:
            if known == config:
                return mode
        self._modes.append((config, resolve_mode(config)))
        return self._modes[-1][1]


def _publish(order: Publish) -> Published:
    try:
        return Published(publish(order.page, order.place, order.directory))
    except lost_errors() as error:
        return Published(failure=first_line(error))


def _start_core() -> None:
    """Start wandb-core, a fifth of a second before a run needs it; a failure shows again when the run is started."""
    import wandb

    with suppress(*lost_errors()):
        wandb.setup(settings=wandb.Settings(silent=True))
