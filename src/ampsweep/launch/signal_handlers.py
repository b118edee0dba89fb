"""Handlers of the stop signals: the first ends a training at its next step, the second ends it at once."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from ampsweep.launch.slurm import own_job
from ampsweep.stop_signals import STOP_SIGNALS, WARNING_SIGNALS

# Wrappers (GNU `timeout`, `wandb agent`, `uv run`) signal a process and then its whole group: one request, two signals.
_ECHO_S = 0.5


class StopRequest:
    """A flag that the stop signals raise while the context is entered; a second signal raises KeyboardInterrupt.

    A batch system's warning and the SIGTERM that follows it never count as a second signal, nor does any SIGTERM in a
    Slurm job. Outside the main thread no handlers are installed; only `request` raises the flag.
    """

    def __init__(self) -> None:
        self.reason = ""  # reason of the first request, such as "SIGINT"; empty while there is none
        self._signalled_at: float | None = None
        self._interrupts = False
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    @property
    def requested(self) -> bool:
        return bool(self.reason)

    def request(self, reason: str) -> None:
        """Request a stop without a signal, from any thread; it never counts as the second signal."""
        self.reason = self.reason or reason

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the main thread from another thread; return False if no handler is installed."""
        main_thread = threading.main_thread().ident
        if sys.platform == "win32" or not self._previous or main_thread is None:
            return False
        self._interrupts = True
        signal.pthread_kill(main_thread, signal.SIGINT)
        return True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not installed from Python, so Python cannot reinstall it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._interrupts:
            self._interrupts = False
            raise KeyboardInterrupt
        # A Slurm job gets SIGTERM for the step, for the job and from torchrun; Slurm's last resort is SIGKILL.
        if number in WARNING_SIGNALS or (number == signal.SIGTERM and own_job() is not None):
            self.request(signal.Signals(number).name)
            return
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
        elif now - self._signalled_at > _ECHO_S:
            raise KeyboardInterrupt
        self.request(signal.Signals(number).name)


@contextmanager
def stop_signals_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at any stop signal, so that a sweep between two runs ends with its comparison so far.
    Existing handlers of a batch system's warnings stay."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    free = [number for number in WARNING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, *free)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def forward_signal(interrupt: KeyboardInterrupt) -> bool:
    """Deliver the warning signal named in `interrupt`, which a StopRequest has taken, to the handler before it; return
    True if the handler says that the job is over.

    submitit's requeues the job if Slurm allows it, and raises SystemExit; otherwise it raises an error because the job
    has no result, which does not matter once the run has a record.
    """
    try:
        for number in WARNING_SIGNALS:
            if number.name == str(interrupt) and callable(signal.getsignal(number)):
                signal.raise_signal(number)
    except Exception:  # noqa: BLE001  the launcher's own error
        return True
    return False
