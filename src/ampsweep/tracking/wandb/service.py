"""The main function of the W&B process: it imports wandb once, and forks for each task."""

import gc
import hmac
import importlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import psutil

from ampsweep.records import RecordError
from ampsweep.stop_signals import STOP_SIGNALS
from ampsweep.tracking.wandb.library import WandbError, error_clause
from ampsweep.tracking.wandb.process import FAMILY, KEY_BYTES, Answer, kill_family
from ampsweep.tracking.wandb.run_settings import finish_timeout_s

_IMPORTS: Final = (
    *("wandb", "wandb.apis.public", "requests", "opentelemetry.exporter.otlp.proto.http.metric_exporter"),
    "ampsweep.tracking.wandb.send_history",
)
"""The imports of the first task, half a second in all; missing modules are skipped."""
_LATER: Final = ("wandb.sdk.launch.inputs.internal", "pandas")
"""wandb's own imports when a run begins or has tables, made here once the first task, a check, has begun."""
_FORKS: Final = sys.platform == "linux"
_ALONE_S: Final = 60.0  # limit of a task after its caller has asked it to finish, or died
_KILLED_S: Final = 0.5


class Caller:
    """The process that waits for a task; `has_ended` is set when it asks the task to finish, or dies."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self.has_ended = Event()
        Thread(target=self._listen, name="caller", daemon=True).start()

    def send(self, message: object) -> None:
        with suppress(OSError):  # the caller is dead
            self._connection.send(message)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            self._connection.recv()
        self.has_ended.set()
        time.sleep(max(_ALONE_S, 2 * (finish_timeout_s() or 0)))
        kill_family(os.getpid())


def main(folder: str) -> None:
    """Serve clients until stdin ends with the parent; ``folder`` is the process's own, for its socket, and removed."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    key = sys.stdin.buffer.read(KEY_BYTES)
    with socket.socket(FAMILY) as listening:
        listening.bind(str(Path(folder) / "s") if FAMILY != socket.AF_INET else ("127.0.0.1", 0))
        listening.listen(128)
        place = listening.getsockname()
        print(place if FAMILY != socket.AF_INET else place[1], flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout was for the address only
        Thread(target=_end_with_parent, args=(folder,), name="parent", daemon=True).start()
        _import(_IMPORTS)
        if _FORKS:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        while True:
            client, _ = listening.accept()
            with client, suppress(OSError):  # no room for a process
                if not _FORKS:
                    multiprocessing.get_context("spawn").Process(target=_serve, args=(client, key)).start()
                elif os.fork() == 0:
                    try:
                        listening.close()
                        _serve(client, key)
                    finally:
                        os._exit(0)
            _import(_LATER)


def _end_with_parent(folder: str) -> None:
    """End this process once its parent is dead and its last task is done."""
    os.read(sys.stdin.fileno(), 1)
    psutil.wait_procs(psutil.Process().children(), timeout=_ALONE_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _import(names: Sequence[str]) -> None:
    gc.disable()
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


def _serve(client: socket.socket, key: bytes) -> None:
    if _FORKS:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logging.raiseExceptions = False  # W&B's log on a full disk, which the run itself reports
    # The libraries below wandb log when their own telemetry does not arrive.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    with suppress(EOFError, OSError), Connection(client.detach()) as connection:
        if not hmac.compare_digest(connection.recv_bytes(KEY_BYTES), key):
            return
        connection.send(os.getpid())
        function, arguments = connection.recv()
        caller = Caller(connection)
        try:
            answer = Answer(function(caller, *arguments))
            import wandb

            wandb.teardown()  # completes the file of an offline run and sends alerts
        except (WandbError, RecordError) as error:
            answer = Answer(error=error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  wandb raises many, and the caller gets each
            if isinstance(error, OSError) and error.filename is not None:
                answer = Answer(error=error)
            else:
                answer = Answer(error=WandbError(error_clause(error)))
        with suppress(psutil.Error):  # wandb-core has ended by itself, or has nothing more to do
            for core in psutil.Process().children(recursive=True):
                core.kill()
                core.wait(_KILLED_S)
        connection.send(answer)
