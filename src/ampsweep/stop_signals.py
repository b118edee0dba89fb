"""The signals that ask a training to stop, and processes that are started so that none is lost."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Final

WARNING_SIGNALS: Final = () if sys.platform == "win32" else (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that batch systems send some time before they end a job, as `sbatch --signal` and submitit have it: Slurm
sends them to every process of the job step, and one that does not handle them is killed."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, *WARNING_SIGNALS)


@contextmanager
def held_stop_signals() -> Iterator[None]:
    """Block the stop signals in processes started inside, so that none is killed before it can handle them.

    Signals that arrive meanwhile stay pending: here until the context ends, there until `release_stop_signals`.
    """
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


def release_stop_signals() -> None:
    """Deliver in this thread the signals that `held_stop_signals` has held back since the process began."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
