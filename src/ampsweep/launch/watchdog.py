"""The watchdog of a run: it ends a step that never returns, and whatever else of a run takes longer than it may.

Three ways are tried in turn, because a run can stand still in three ways:

1. The main thread gets a signal, which raises an error wherever Python waits; the run then ends as a failed one does.
2. Where that is not heard, as in a library that waits for a device, the watchdog's own thread has the failure recorded
   and ends the process.
3. Where no Python code runs at all, as in an extension that holds the interpreter's lock, `faulthandler`, whose timer
   needs none, writes the stacks of all threads and ends the process.
"""

import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from ampsweep.own_code import place_in_thread
from ampsweep.text import duration

_HEARD_WITHIN_S: Final = 5.0
"""The time between the signal and the second way, and between that and the third."""
STACKS_BEGIN: Final = "Timeout ("
"""The first words of what `faulthandler` writes."""


class TimeLimitError(RuntimeError):
    """Raised where a part of a run took longer than it may, with the traceback of the place that it stood at."""


def interrupt_main_thread() -> bool:
    """Raise KeyboardInterrupt in the main thread, if SIGINT has Python's own handler; return False if that is unknown.

    A thread that waits in Python code wakes up for it.
    """
    if sys.platform == "win32" or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.pthread_kill(_main_thread(), signal.SIGINT)
    return True


class Watchdog:
    """Limits the time of each part of a run; without a limit it does nothing.

    Args:
        max_s: seconds that a part may take before its grace begins; None: no limit.
        grace_s: seconds of the grace, which are left at least to a part that goes on after another within it.
        interrupt: raises KeyboardInterrupt in the main thread; returns False if it cannot.
        on_stuck: called in another thread, with a sentence, before the process is ended in the second way.
        stacks: the file for the stacks of a process ended in the third way; None: stderr.
    """

    def __init__(
        self,
        max_s: float | None,
        grace_s: float = 0.0,
        *,
        interrupt: Callable[[], bool] = interrupt_main_thread,
        on_stuck: Callable[[str], None] = lambda sentence: None,
        stacks: Path | None = None,
    ) -> None:
        self._max_s, self._grace_s = max_s, grace_s
        self._interrupt, self._on_stuck, self._stacks = interrupt, on_stuck, stacks
        self._told: Callable[[], str] | None = None
        self._file: IO[str] | None = None
        self._deadline_s, self._is_late, self._is_over = math.inf, False, False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, doing: Callable[[], str], num_graces: int = 1) -> Iterator[None]:
        """Limit the time of the part of a run inside, in the main thread; parts may lie in each other.

        `doing` names the part, such as "step 3", once it has taken too long: `max_s` and so many graces.

        Raises:
            TimeLimitError: it took too long.
        """
        if self._max_s is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        outer, outer_deadline_s = self._told, self._deadline_s
        limit_s = self._max_s + num_graces * self._grace_s
        limits = f"trainer.max_seconds={self._max_s:g}, trainer.grace_seconds={self._grace_s:g}"

        def sentence() -> str:
            return f"{doing()} did not end within {duration(limit_s)} ({limits})"

        with self._stacks_file():
            self._set(sentence, time.monotonic() + limit_s)
            try:
                yield
            except KeyboardInterrupt as interrupt:
                if not self._is_late:
                    raise  # the user's
                raise TimeLimitError(sentence()).with_traceback(interrupt.__traceback__) from None
            finally:
                if outer is not None:
                    self._set(outer, max(outer_deadline_s, time.monotonic() + self._grace_s))
                else:
                    self._end()

    @contextmanager
    def _stacks_file(self) -> Iterator[None]:
        """Hold the file for the stacks open, one for all parts within each other; an empty one is gone afterwards."""
        if self._file is not None or self._stacks is None:
            yield
            return
        with suppress(OSError):  # no room: stderr takes the stacks
            self._file = self._stacks.open("a", encoding="utf-8")
        try:
            yield
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None
            with suppress(OSError):
                if self._stacks.stat().st_size == 0:
                    self._stacks.unlink()

    def _set(self, told: Callable[[], str], deadline_s: float) -> None:
        with self._changed:
            self._told, self._deadline_s, self._is_late = told, deadline_s, False
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()
        left_s = deadline_s - time.monotonic() + 2 * _HEARD_WITHIN_S
        with suppress(ValueError, OSError, RuntimeError):  # a stderr without a file, as under a test
            faulthandler.dump_traceback_later(
                max(left_s, _HEARD_WITHIN_S),
                exit=True,
                file=self._file or sys.__stderr__,  # type: ignore[arg-type]
            )

    def _end(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        with self._changed:
            self._told, self._deadline_s, self._is_over = None, math.inf, True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._thread, self._is_over = None, False

    def _watch(self) -> None:
        with self._changed:
            while not self._is_over:
                left_s = self._deadline_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                elif not self._is_late and self._signalled():
                    self._deadline_s = time.monotonic() + _HEARD_WITHIN_S
                else:
                    break
            else:
                return
        try:
            assert self._told is not None
            place = place_in_thread(_main_thread())
            self._on_stuck(self._told() + ("" if place is None else f" ({place})"))
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _signalled(self) -> bool:
        self._is_late = True
        return self._interrupt()


UNWATCHED: Final = Watchdog(None)
"""The watchdog that never does anything."""


def _main_thread() -> int:
    identity = threading.main_thread().ident
    assert identity is not None
    return identity
