"""The watchdog of a run ends a step, or another part, that exceeds its time limit. It escalates in three stages:

1. A signal raises an error in the main thread, wherever Python waits; the run then fails as usual.
2. If the main thread does not react (in a library that waits for a device), the watchdog's thread has the failure
   recorded and ends the process.
3. If no Python code runs at all (in an extension that holds the GIL), `faulthandler`, whose timer does not need the
   GIL, writes the stacks of all threads and ends the process.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from ampsweep.text import duration
from ampsweep.user_code import place_in_thread

_STAGE_S: Final = 5.0  # the time between two stages
STACKS_BEGIN: Final = "Timeout ("  # the first words of what `faulthandler` writes


class TimeLimitError(RuntimeError):
    """Raised where a part of a run was interrupted because it exceeded its time limit."""


def interrupt_main_thread() -> bool:
    """Raise KeyboardInterrupt in the main thread, also during a wait; return False if SIGINT has another handler."""
    if sys.platform == "win32" or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.pthread_kill(_main_thread(), signal.SIGINT)
    return True


class Watchdog:
    """Limits the time of each part of a run.

    Args:
        max_s: seconds that a part may take before its grace period; None: no limit.
        grace_s: the grace period in seconds, which a part also gets after another part inside it.
        interrupt: raises KeyboardInterrupt in the main thread; returns False if it cannot.
        on_stuck: called in another thread, with a sentence, before stage 2 ends the process.
        stacks: file for the stacks of stage 3; None: stderr.
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
        self._file: IO[str] | None = None
        self._part: _Part | None = None

    @contextmanager
    def over(self, doing: Callable[[], str], num_graces: int = 1) -> Iterator[None]:
        """Limit the part inside (main thread only; parts nest) to `max_s` and `num_graces` grace periods. `doing` names
        the part, such as "step 3", in the TimeLimitError that is raised beyond the limit."""
        if self._max_s is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        outer = self._part
        limit_s = self._max_s + num_graces * self._grace_s
        limits = f"trainer.max_seconds={self._max_s:g}, trainer.grace_seconds={self._grace_s:g}"

        def sentence() -> str:
            return f"{doing()} did not end within {duration(limit_s)} ({limits})"

        part = _Part(sentence, time.monotonic() + limit_s)
        with self._stacks_file():
            self._pause()
            self._watch(part)
            try:
                yield
            except KeyboardInterrupt as interrupt:
                if not part.is_late:
                    raise  # the user's
                raise TimeLimitError(sentence()).with_traceback(interrupt.__traceback__) from None
            finally:
                self._pause()
                if outer is not None:
                    outer.deadline_s = max(outer.deadline_s, time.monotonic() + self._grace_s)
                    self._watch(outer)

    @contextmanager
    def _stacks_file(self) -> Iterator[None]:
        """Hold the file for the stacks open during the outermost part; afterwards delete it if it is empty."""
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

    def _watch(self, part: "_Part") -> None:
        self._part = part
        part.over.clear()
        part.thread = threading.Thread(target=self._end_if_late, args=(part,), name="watchdog", daemon=True)
        part.thread.start()
        left_s = part.deadline_s - time.monotonic() + 2 * _STAGE_S
        with suppress(ValueError, OSError, RuntimeError):  # a stderr without a file, as under a test
            faulthandler.dump_traceback_later(
                max(left_s, _STAGE_S),
                exit=True,
                file=self._file or sys.__stderr__,  # type: ignore[arg-type]
            )

    def _pause(self) -> None:
        if self._part is not None and self._part.thread is not None:
            faulthandler.cancel_dump_traceback_later()
            self._part.over.set()
            self._part.thread.join()
        self._part = None

    def _end_if_late(self, part: "_Part") -> None:
        left_s = max(0.0, part.deadline_s - time.monotonic())
        if part.over.wait(min(left_s, threading.TIMEOUT_MAX)):
            return
        part.is_late = True
        if self._interrupt() and part.over.wait(_STAGE_S):
            return
        try:
            place = place_in_thread(_main_thread())
            self._on_stuck(part.sentence() + ("" if place is None else f" ({place})"))
            sys.stderr.flush()
        finally:
            os._exit(1)


@dataclass
class _Part:
    sentence: Callable[[], str]
    deadline_s: float
    is_late: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


UNWATCHED: Final = Watchdog(None)


def _main_thread() -> int:
    identity = threading.main_thread().ident
    assert identity is not None
    return identity
