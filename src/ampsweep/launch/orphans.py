"""Processes that outlive the one that started them, as a user's own may: the command takes them over and ends them."""

import ctypes
import sys
import threading
from collections.abc import Container
from contextlib import suppress
from typing import Final

import psutil

_PATIENCE_S: Final = 0.5
"""Patience with what was sent SIGTERM: nobody else asks how it ended."""


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
