"""Stop signals: the first ends a training at its next step, the second at once."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from ampsweep.stop_signals import STOP_SIGNALS

# Wrappers (GNU `timeout`, `wandb agent`, `uv run`) signal a process and then its whole group: one request, two signals.
_ECHO_S = 0.5


class StopRequest:
    """A flag that SIGINT and SIGTERM raise while the context is entered; a second signal raises KeyboardInterrupt.

    Handlers exist only for the main thread; entered in another one, the flag is raised by `request` alone.
    """

    def __init__(self) -> None:
        self.reason = ""
        """Reason of the first request, such as "SIGINT"; empty while there is none."""
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
        """Raise KeyboardInterrupt in the main thread at once, from another one; return False if no handler is there."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not installed from Python and cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._interrupts:
            self._interrupts = False
            raise KeyboardInterrupt
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
        elif now - self._signalled_at > _ECHO_S:
            raise KeyboardInterrupt
        self.request(signal.Signals(number).name)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does: between two runs, a sweep then ends with its comparison so far."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
