"""Processes: how they are started, forked from a warm server where that is safe, and what ends them besides."""

import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import psutil

from ampsweep.socket_folder import short_socket_paths
from ampsweep.stop_signals import held_stop_signals

_CAN_FORK: Final = sys.platform == "linux"
"""A fork of a process that has imported torch is sound on Linux only: on macOS system libraries forbid it."""
_READ_AT_IMPORT: Final = ("TORCH", "PYTORCH", "OMP_", "MKL_", "OPENBLAS_")
"""Variables that torch and the libraries under it read while they are imported: in a forked process, too late."""
_READ_WHEN_USED: Final = {"TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC_USE_AGENT_STORE"}
"""Others of such names; torch itself sets the first, to a folder below the temporary directory of the moment."""

SLOW_IMPORTS = (
    "torch",
    "torch._dynamo",  # imported by the first optimizer
    "hydra",
    "psutil",
)
"""Modules that a run needs, that are slow to import and touch no device; one that is not installed is left out."""

_PATIENCE_S: Final = 0.5
"""Patience with orphans that were sent SIGTERM: nobody else asks how they ended."""
_of_server: dict[str, str] | None = None
"""The variables that the fork server's libraries have read; None before it was started."""


def start_fork_server(modules: Sequence[str] = SLOW_IMPORTS) -> None:
    """Start the fork server, which imports `modules` while the caller goes on, unless it runs or cannot run here.

    Raises OSError if the system refuses, or no folder here takes a socket.
    """
    global _of_server  # as the server is, one of the process
    if not _CAN_FORK:
        return
    # Linux takes the end of the thread that starts it for the parent's.
    tie = ["ampsweep.launch.tied_to_parent"] if threading.current_thread() is threading.main_thread() else []
    multiprocessing.set_forkserver_preload([*tie, *modules])
    with held_stop_signals(), short_socket_paths():
        forkserver.ensure_running()
    _of_server = _read_at_import(os.environ) if _of_server is None else _of_server


def start_process(
    main: Callable[..., None], args: tuple[object, ...], environment: Mapping[str, str]
) -> tuple[BaseProcess, Connection]:
    """Call `main(pipe, *args)` in a new process; returns that process and this side of the pipe.

    It is forked from the warm server, unless `environment` has other values of what the server's libraries have read.
    The stop signals are blocked there until `release_stop_signals`. Raises OSError or EOFError if no process can be
    started, because the system refuses or the fork server has died.
    """
    ours, theirs = multiprocessing.Pipe()
    with theirs, _known_start_method():
        start_fork_server()
        if _CAN_FORK and _read_at_import(environment) == _of_server:
            process: BaseProcess = multiprocessing.get_context("forkserver").Process(target=main, args=(theirs, *args))
            process.start()  # waits for the server's imports, so signals are not held here: the server holds them
        else:
            process = multiprocessing.get_context("spawn").Process(target=main, args=(theirs, *args))
            with held_stop_signals():
                process.start()
    return process, ours


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _READ_WHEN_USED
    }


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


def adopt_orphans() -> frozenset[int]:
    """Let this process be the parent of all that its descendants leave, as Linux can; returns its children so far."""
    _set_reaper(True)
    return frozenset(child.pid for child in psutil.Process().children())


def end_orphans(known: Container[int]) -> None:
    """Send SIGTERM to the children of this process that are not `known`; those of ours ignore it until they are done.

    From here on this process takes over none: what ends up without a parent is foreign to it. In another thread than
    the main one no process is ended: a third may just be starting one.
    """
    is_main = threading.current_thread() is threading.main_thread()
    orphans = [child for child in psutil.Process().children() if child.pid not in known] if is_main else []
    for orphan in orphans:
        with suppress(psutil.Error):
            orphan.terminate()
    psutil.wait_procs(orphans, _PATIENCE_S)
    _set_reaper(False)


def _set_reaper(on: bool) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, int(on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def num_oom_kills(root: Path = Path("/")) -> int | None:
    """Number of processes in this process's cgroup that the kernel has killed for lack of memory; None if unknown.

    `root` is the root of the file system. Cgroups of version 2 tell it in `memory.events`
    (https://docs.kernel.org/admin-guide/cgroup-v2.html), of version 1 in `memory.oom_control`
    (https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
    """
    for path in _counters(root):
        with suppress(OSError):
            for line in path.read_text(encoding="ascii", errors="replace").splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.isdecimal():
                    return int(count)
    return None


def _counters(root: Path) -> Iterator[Path]:
    """Files that may hold the count: those of the cgroup, then those that a container sees as its own."""
    mount = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield mount / "memory" / path.lstrip("/") / "memory.oom_control"
            elif not controllers:  # the nearest that has the memory controller: Slurm's is the step, not the task
                place = mount / path.lstrip("/")
                yield from (one / "memory.events" for one in (place, *place.parents) if one.is_relative_to(mount))
    yield mount / "memory.events"
    yield mount / "memory/memory.oom_control"
