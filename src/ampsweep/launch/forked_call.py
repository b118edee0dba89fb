"""A call in a fork that shares the terminal, so that a killed training is noticed."""

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from typing import Final

from ampsweep.launch.isolated_process import ChildExit, Send, sudden_end
from ampsweep.launch.processes import adopt_orphans, end_orphans, num_oom_kills
from ampsweep.stop_signals import STOP_SIGNALS

_TICK_S: Final = 0.2


def call_in_fork(function: Callable[[Send], int], on_message: Send, grace_s: float = 60.0) -> ChildExit[int]:
    """Call `function`, which sends messages and returns an exit code, in a fork, and wait for its end.

    The fork has the terminal (a debugger works, Ctrl-C reaches it); other stop signals are passed on. It dies with this
    process, and is killed `grace_s` seconds after the function has returned. Where a fork is not safe (outside Linux,
    beside other threads, after torch's import), the function is called in this process.
    """
    if sys.platform != "linux" or "torch" in sys.modules or threading.active_count() > 1:
        return ChildExit(0, function(on_message), None, None, "")
    (ours, theirs), kills, known = Pipe(duplex=False), num_oom_kills(), adopt_orphans()
    wakes = {*STOP_SIGNALS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wakes)
    if (child := os.fork()) == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = 1
        try:
            code = function(lambda message: theirs.send((False, message)))
        finally:
            theirs.send((True, code))
        sys.exit(code)
    theirs.close()
    stopped_by, result, deadline_s, ended = "", None, math.inf, 0
    while not ended:
        got = signal.sigtimedwait(wakes, _TICK_S)
        if got is not None and got.si_signo != signal.SIGCHLD:
            stopped_by = stopped_by or signal.Signals(got.si_signo).name
            if got.si_pid:  # else it is from the terminal, which signals the fork, too
                os.kill(child, got.si_signo)
        ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(EOFError, OSError):  # closed, or cut off within a message
            while ours.poll():
                is_result, value = ours.recv()
                if is_result:
                    result, deadline_s = value, time.monotonic() + grace_s
                else:
                    on_message(value)
        if not ended and time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
    end_orphans(known)
    while signal.sigtimedwait(wakes, 0) is not None:
        pass  # meant for the ended fork
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    exitcode = os.waitstatus_to_exitcode(status)
    sentence = sudden_end(exitcode) if result is None else None
    oom_killed = exitcode == -signal.SIGKILL and kills is not None and (num_oom_kills() or 0) > kills
    return ChildExit(exitcode, result, sentence, sentence, stopped_by, oom_killed)
