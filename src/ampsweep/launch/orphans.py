"""Processes that outlive the one that has started them, as a user's own do: the command takes them over and ends them.

https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Container
from contextlib import suppress
from typing import Final

import psutil

_DIE_WITH_PARENT: Final = 1
_ADOPT_ORPHANS: Final = 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of <linux/prctl.h>."""
_GRACE_S: Final = 10.0


def adopt_orphans() -> frozenset[int]:
    """Let this process be the parent of all that its descendants leave behind; returns the children that it has now.

    Only Linux can; elsewhere nothing is done.
    """
    if sys.platform != "linux":
        return frozenset()
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    return frozenset(child.pid for child in psutil.Process().children())


def end_orphans(known: Container[int]) -> None:
    """Ask the children of this process that are not `known` to end, and kill them after ten seconds with their own.

    Called in the main thread alone: others may be starting processes.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return
    asked: set[int] = set()
    deadline_s = time.monotonic() + _GRACE_S
    while left := [child for child in psutil.Process().children() if child.pid not in known]:
        for one in left:
            with suppress(psutil.Error):
                if time.monotonic() > deadline_s:
                    for child in one.children(recursive=True):
                        child.kill()
                    one.kill()
                elif one.pid not in asked:
                    one.terminate()
                asked.add(one.pid)
        psutil.wait_procs(left, timeout=0.1)


def die_with(parent: int) -> None:
    """Have this process killed when `parent`, which has forked it, dies."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
