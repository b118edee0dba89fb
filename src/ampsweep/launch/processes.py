"""Start of child processes, forked from a warm server where that is safe; their orphans, and out-of-memory kills."""

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
from ampsweep.stop_signals import blocked_stop_signals

_CAN_FORK: Final = sys.platform == "linux"
"""A fork of a process that has imported torch is sound on Linux only: on macOS system libraries forbid it."""
_READ_AT_IMPORT: Final = ("TORCH", "PYTORCH", "OMP_", "MKL_", "OPENBLAS_")
"""Prefixes of variables that torch and its libraries read at import, which is too late in a forked process."""
_READ_WHEN_USED: Final = {"TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC_USE_AGENT_STORE"}
"""Exceptions; torch itself sets the first, to a folder below the current temporary directory."""
SLOW_IMPORTS = ("torch", "torch._dynamo", "hydra", "psutil")
"""Slow imports of a run that touch no device (torch._dynamo: by the first optimizer); missing ones are skipped."""
_ORPHANS_S: Final = 0.5  # wait for orphans after SIGTERM
_server_variables: dict[str, str] | None = None
"""The variables that the fork server's libraries have read; None before its start."""


def start_fork_server(modules: Sequence[str] = SLOW_IMPORTS) -> None:
    """Start the fork server, unless it runs or cannot run here; it imports `modules` in the background. Raises OSError
    if the system refuses, or no folder here takes a socket."""
    global _server_variables
    if not _CAN_FORK:
        return
    # Linux sends the parent-death signal when the starting thread ends.
    tie = ["ampsweep.launch.parent_death_signal"] if threading.current_thread() is threading.main_thread() else []
    multiprocessing.set_forkserver_preload([*tie, *modules])
    with blocked_stop_signals(), short_socket_paths():
        forkserver.ensure_running()
    _server_variables = _read_at_import(os.environ) if _server_variables is None else _server_variables


def start_process(
    main: Callable[..., None], args: tuple[object, ...], environment: Mapping[str, str]
) -> tuple[BaseProcess, Connection]:
    """Call `main(pipe, *args)` in a new process; returns the process and the other end of the pipe.

    It is forked from the warm server unless `environment` differs in variables that the server's libraries have read.
    The stop signals are blocked in it until `unblock_stop_signals`. Raises OSError or EOFError if the system refuses or
    the fork server has died.
    """
    ours, theirs = multiprocessing.Pipe()
    with theirs, _known_start_method():
        start_fork_server()
        if _CAN_FORK and _read_at_import(environment) == _server_variables:
            process: BaseProcess = multiprocessing.get_context("forkserver").Process(target=main, args=(theirs, *args))
            process.start()  # waits for the server's imports; the server already blocks the signals
        else:
            process = multiprocessing.get_context("spawn").Process(target=main, args=(theirs, *args))
            with blocked_stop_signals():
                process.start()
    return process, ours


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in environment if name.startswith(_READ_AT_IMPORT) and name not in _READ_WHEN_USED]
    return {name: environment[name] for name in names}


@contextmanager
def _known_start_method() -> Iterator[None]:
    """Reset the default start method in a joblib worker: children inherit it, and do not know loky."""
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
    """Make this process the parent of its descendants' orphans (Linux); returns its children so far."""
    _set_reaper(True)
    return frozenset(child.pid for child in psutil.Process().children())


def end_orphans(known: Container[int]) -> None:
    """Send SIGTERM to the children that are not `known`, and stop adopting. Our own ignore it until they are done.
    Outside the main thread no process is ended: another thread may just be starting it."""
    is_main = threading.current_thread() is threading.main_thread()
    orphans = [child for child in psutil.Process().children() if child.pid not in known] if is_main else []
    for orphan in orphans:
        with suppress(psutil.Error):
            orphan.terminate()
    psutil.wait_procs(orphans, _ORPHANS_S)
    _set_reaper(False)


def _set_reaper(on: bool) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, int(on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def num_oom_kills(root: Path = Path("/")) -> int | None:
    """Number of out-of-memory kills in this process's cgroup, None if unknown; `root` is the file system's root.

    Cgroups v2: `memory.events` (https://docs.kernel.org/admin-guide/cgroup-v2.html), v1: `memory.oom_control`
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
    """Files that may hold the count: of the cgroup, then of the container."""
    mount = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield mount / "memory" / path.lstrip("/") / "memory.oom_control"
            elif not controllers:  # the nearest with the memory controller; Slurm limits the step, not the task
                own = mount / path.lstrip("/")
                yield from (place / "memory.events" for place in (own, *own.parents) if place.is_relative_to(mount))
    yield mount / "memory.events"
    yield mount / "memory/memory.oom_control"
