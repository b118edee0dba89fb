"""The W&B process: it imports wandb once, and is forked for each function that it is asked to call."""

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

from ampsweep.record import RecordError
from ampsweep.stop_signals import STOP_SIGNALS
from ampsweep.tracking.wandb.library import WandbError, error_clause
from ampsweep.tracking.wandb.process import FAMILY, KEY_BYTES, Answer, kill_family
from ampsweep.tracking.wandb.run_settings import finish_timeout_s

_IMPORTS: Final = (
    *("wandb", "wandb.apis.public", "requests", "opentelemetry.exporter.otlp.proto.http.metric_exporter"),
    "ampsweep.tracking.wandb.follow",
)
"""The imports of the first task, together half a second; one that is not there is left out."""
_LATER: Final = ("wandb.sdk.launch.inputs.internal", "pandas")
"""The imports of wandb itself once a run begins, and has tables: made when the first task, a check, has begun."""
_FORKS: Final = sys.platform == "linux"
_ALONE_S: Final = 60.0
"""The time that a task may take once it has been told that the end has come, or nobody waits for it any more."""

_KILLED_S: Final = 0.5


class Caller:
    """The process that waits for a task: it takes messages, and says by a word, or its death, when the end has come."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self.has_ended = Event()
        Thread(target=self._listen, name="caller", daemon=True).start()

    def send(self, message: object) -> None:
        with suppress(OSError):  # nobody waits any more
            self._connection.send(message)

    def _listen(self) -> None:
        """Wait for its word, and then for no more than a minute."""
        with suppress(EOFError, OSError):
            self._connection.recv()
        self.has_ended.set()
        time.sleep(max(_ALONE_S, 2 * (finish_timeout_s() or 0)))
        kill_family(os.getpid())


def main(folder: str) -> None:
    """Serve one client after another until the process at the other end of stdin is gone.

    Args:
        folder: this process's own, with its socket, and removed at its end. It is given by name: Python's own choice of
            a folder for temporary files is another one, such as `/tmp`, where this one has no room.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    key = sys.stdin.buffer.read(KEY_BYTES)
    with socket.socket(FAMILY) as listening:
        listening.bind(str(Path(folder) / "s") if FAMILY != socket.AF_INET else ("127.0.0.1", 0))
        listening.listen(128)
        place = listening.getsockname()
        print(place if FAMILY != socket.AF_INET else place[1], flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout has said what it was for
        Thread(target=_end_with_parent, args=(folder,), name="parent", daemon=True).start()
        _import(_IMPORTS)
        if _FORKS:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they end
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
    """End this process, whose other thread waits for clients who will not come, after the last of its tasks."""
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
    """Call the function that the client wants, and send it what that returns or raises."""
    if _FORKS:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logging.raiseExceptions = False  # W&B's log on a full disk: the run itself tells of that
    # The libraries under wandb log their own measurements that do not arrive.
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

            wandb.teardown()  # only where wandb-core ends by itself is the file of an offline run whole, an alert sent
        except (WandbError, RecordError) as error:
            answer = Answer(error=error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  wandb raises many, and the caller is told of each
            if isinstance(error, OSError) and error.filename is not None:
                answer = Answer(error=error)
            else:
                answer = Answer(error=WandbError(error_clause(error)))
        with suppress(psutil.Error):  # it has ended by itself
            for core in psutil.Process().children(recursive=True):  # which has no more to do
                core.kill()
                core.wait(_KILLED_S)
        connection.send(answer)
