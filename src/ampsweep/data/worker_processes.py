"""The processes of workers: how they begin, and what ends them."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import util
from multiprocessing.process import BaseProcess
from typing import Any, Final

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from ampsweep.socket_folder import socket_folder
from ampsweep.stop_signals import STOP_SIGNALS, held_stop_signals
from ampsweep.text import one_line

_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h"""
_HINTS: Final = {"SIGBUS": ", as where /dev/shm has no room", "SIGKILL": ", as the system does where memory runs out"}


@contextmanager
def starting_workers() -> Iterator[list[BaseProcess]]:
    """Enclose the start of workers; the list has their processes afterwards.

    The stop signals are held back there until they are ignored. The folder of their sockets, through which tensors
    come, is chosen here, where its path is not too long. torch's handler for the death of children, which raises in the
    midst of whatever runs then, is taken off again.
    """
    before, handler = set(multiprocessing.active_children()), _child_handler()
    found: list[BaseProcess] = []
    usual, tempfile.tempdir = tempfile.tempdir, socket_folder()
    try:
        util.get_temp_dir()
        with held_stop_signals():
            yield found
    finally:
        tempfile.tempdir = usual
        _set_child_handler(handler)
        found += [child for child in multiprocessing.active_children() if child not in before]


def begin_worker(parent: int, _: int) -> None:
    """Prepare this process, a worker of `parent`.

    The stop signals, which Ctrl-C and batch systems send to every process, are the parent's, whose death is the
    worker's own, too; and no dispatch mode that a fork inherits from a trace or a memory limit counts its operators.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _ignore)  # no SIG_IGN: a program that the user's code starts would inherit it
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    if sys.platform == "linux" and multiprocessing.get_start_method() == "fork":
        # Elsewhere torch's worker looks every 5 seconds, unless it reads.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before that
    for _mode in _get_current_dispatch_mode_stack():
        _pop_mode()


@contextmanager
def on_death(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` whenever a child process has ended; in other threads than the main one never."""
    before = _child_handler()
    _set_child_handler(lambda *_: look())
    try:
        yield
    finally:
        _set_child_handler(before)


def told_death(process: BaseProcess) -> str | None:
    """A sentence on how a worker has ended; None while it lives."""
    code = process.exitcode
    if code is None:
        return None
    who = f"a worker that reads the data (process {process.pid})"
    if code >= 0:
        return f"{who} ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"{who} was killed by {name}{_HINTS.get(name, '')}"


def end_workers(iterator: Any, processes: list[BaseProcess]) -> None:
    """End the workers of a DataLoader's iterator; one that still reads after torch's 5 seconds is killed."""
    try:
        iterator._shutdown_workers()  # as its __del__ does, which comes too late where a traceback keeps it
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def why_not_sent(*parts: Any) -> str | None:
    """A sentence on why these parts of a data set cannot be sent to a worker; None: they can."""
    method = multiprocessing.get_start_method()
    if method == "fork":
        return None
    try:
        pickle.Pickler(_Nowhere()).dump(parts)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own __reduce__ may raise anything
        return f"the dataset cannot be sent to a worker, for which {method} pickles it: {one_line(error)}"
    return None


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, content: Any) -> int:
        return len(content)


def _ignore(*_: object) -> None:
    pass


def _child_handler() -> Any:
    return None if sys.platform == "win32" else signal.getsignal(signal.SIGCHLD)


def _set_child_handler(handler: Any) -> None:
    if sys.platform != "win32":
        with suppress(ValueError):  # only the main thread sets any, and torch does not elsewhere either
            signal.signal(signal.SIGCHLD, signal.SIG_DFL if handler is None else handler)
