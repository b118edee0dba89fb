"""Starting of processes: forked from a warm server where that is safe, spawned elsewhere."""

import multiprocessing
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal

from ampsweep.socket_folder import socket_folder
from ampsweep.stop_signals import held_stop_signals

Method = Literal["forkserver", "spawn"]

# A fork of a process that has imported torch is sound on Linux only: on macOS system libraries forbid it.
METHODS: tuple[Method, ...] = ("forkserver", "spawn") if sys.platform == "linux" else ("spawn",)
"""Ways to start a process here, the quickest first."""

SLOW_IMPORTS = (
    "torch",
    "torch._dynamo",  # imported by the first optimizer
    "hydra",
    "psutil",
)
"""Modules that a run needs, that are slow to import and touch no device; one that is not installed is left out."""


def start_fork_server(modules: Sequence[str] = SLOW_IMPORTS) -> None:
    """Start the fork server, which imports `modules` while the caller goes on, unless it runs or cannot run here.

    Raises OSError if the system refuses, or no folder here takes a socket.
    """
    if "forkserver" not in METHODS:
        return
    # Linux takes the end of the thread that starts it for the parent's.
    tie = ["ampsweep.launch.tied_to_parent"] if threading.current_thread() is threading.main_thread() else []
    multiprocessing.set_forkserver_preload([*tie, *modules])
    with held_stop_signals(), _short_socket_paths():
        forkserver.ensure_running()


@contextmanager
def _short_socket_paths() -> Iterator[None]:
    """Have multiprocessing choose the folder of its sockets, which it does once, where their paths are not too long."""
    before, tempfile.tempdir = tempfile.tempdir, socket_folder()
    try:
        yield
    finally:
        tempfile.tempdir = before


def start_process(
    method: Method, main: Callable[..., None], args: tuple[object, ...]
) -> tuple[BaseProcess, Connection]:
    """Call `main(pipe, *args)` in a new process; returns that process and this side of the pipe.

    The stop signals are blocked there until `release_stop_signals`. Raises OSError or EOFError if no process can be
    started, because the system refuses or the fork server has died.
    """
    ours, theirs = multiprocessing.Pipe()
    with theirs, _known_start_method():
        if method == "forkserver":
            start_fork_server()
            process: BaseProcess = multiprocessing.get_context("forkserver").Process(target=main, args=(theirs, *args))
            process.start()  # waits for the server's imports, so signals are not held here: the server holds them
        else:
            process = multiprocessing.get_context("spawn").Process(target=main, args=(theirs, *args))
            with held_stop_signals():
                process.start()
    return process, ours


@contextmanager
def _known_start_method() -> Iterator[None]:
    """Reset the default start method in a joblib worker: multiprocessing passes it to children, which know no loky."""
    default = multiprocessing.get_start_method(allow_none=True)
    if default is None or default in multiprocessing.get_all_start_methods():
        yield
        return
    multiprocessing.set_start_method(None, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(default, force=True)
