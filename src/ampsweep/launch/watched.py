"""A call in a forked process that keeps the terminal, so that the end of that process is known, whatever it is."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from typing import Final, NoReturn

from ampsweep.launch.isolated import ChildExit, sudden_end
from ampsweep.launch.oom_kills import num_oom_kills
from ampsweep.launch.orphans import adopt_orphans, die_with, end_orphans
from ampsweep.stop_signals import STOP_SIGNALS

_TICK_S: Final = 0.2

Send = Callable[[object], None]


def call_watched(function: Callable[[Send], int], on_message: Send, grace_s: float = 60.0) -> ChildExit[int]:
    """Call `function`, which returns an exit code, in a fork of this process and wait for that process's end.

    A debugger works there as it does here, Ctrl-C arrives by itself, and other stop signals are passed on. What the
    function sends is handed to `on_message`. The fork dies with this process, and it is killed `grace_s` seconds after
    the function has returned, where a thread keeps it from ending.

    Where no fork is sound, which is outside Linux, beside other threads and once torch is imported, the function is
    called in this process.
    """
    if sys.platform != "linux" or "torch" in sys.modules or threading.active_count() > 1:
        return ChildExit(0, function(on_message), None, None, "")
    (ours, theirs), kills, known = Pipe(duplex=False), num_oom_kills(), adopt_orphans()
    wakes, parent = {*STOP_SIGNALS, signal.SIGCHLD}, os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wakes)
    child = os.fork()
    if child == 0:
        die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _serve(function, theirs.send)
    theirs.close()
    stopped_by, code, deadline_s, ended = "", None, math.inf, 0
    while not ended:
        got = signal.sigtimedwait(wakes, _TICK_S)
        if got is not None and got.si_signo != signal.SIGCHLD:
            stopped_by = stopped_by or signal.Signals(got.si_signo).name
            if got.si_pid:  # not of the terminal, which tells the fork, too
                os.kill(child, got.si_signo)
        ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(EOFError, OSError):  # closed, or cut off within a message
            while ours.poll():
                is_code, value = ours.recv()
                if is_code:
                    code, deadline_s = value, time.monotonic() + grace_s
                else:
                    on_message(value)
        if not ended and time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
    end_orphans(known)
    while signal.sigtimedwait(wakes, 0) is not None:
        pass  # of what has ended
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    exitcode = os.waitstatus_to_exitcode(status)
    sentence = None if code is not None else sudden_end(exitcode)
    oom_killed = exitcode == -signal.SIGKILL and kills is not None and (num_oom_kills() or 0) > kills
    return ChildExit(exitcode, code, sentence, sentence, stopped_by, oom_killed)


def _serve(function: Callable[[Send], int], send: Send) -> NoReturn:
    code = 1
    try:
        code = function(lambda message: send((False, message)))
    finally:
        send((True, code))
    sys.exit(code)
