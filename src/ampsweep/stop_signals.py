"""The signals that ask a training to stop, and how they are blocked while a process starts."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Final

WARNING_SIGNALS: Final = () if sys.platform == "win32" else (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that batch systems send before they end a job (`sbatch --signal`, submitit): Slurm sends them to every task
process of a job step, and kills those without a handler."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, *WARNING_SIGNALS)


@contextmanager
def blocked_stop_signals() -> Iterator[None]:
    """Block the stop signals in processes started inside, so that none is killed before it can handle them. They stay
    pending: in this process until the context ends, in the new process until `unblock_stop_signals`."""
    if sys.platform == "win32":
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, WARNING_SIGNALS)
    try:
        # multiprocessing starts it on demand, and would unblock the signals then. It ignores the other two itself.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def unblock_stop_signals() -> None:
    """Deliver in this thread the signals that have been blocked since the process began."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
