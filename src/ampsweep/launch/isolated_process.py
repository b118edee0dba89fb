"""Process isolation: functions called in child processes, whose ends, whatever they were, are returned as facts."""

import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Final, Generic, cast

from ampsweep.launch.isolated_child import Fault, NamedFunction, Result, serve
from ampsweep.launch.processes import adopt_orphans, end_orphans, num_oom_kills, start_process
from ampsweep.launch.signal_handlers import StopRequest

Send = Callable[[object], None]  # takes a message of a child
_TICK_S: Final = 0.2  # delay of noticing a signal: waiting resumes by itself after its handler
_LEFT_S: Final = 4.0  # time for the other children to end by themselves once one of several is lost
_SERVER_LOST: Final = 255
"""multiprocessing's exit code for a child whose fork server died, and with it the real exit code."""


class ChildError(RuntimeError):
    """Raised if an isolated call has no result, with one line on how its process ended."""


@dataclass(frozen=True)
class ChildExit(Generic[Result]):
    exitcode: int  # negative: killed by the signal of that number
    result: Result | None  # the target's result, kept even if the process died while it exited
    error: str | None  # the target's traceback, or a sentence on how the process ended; None after success
    sentence: str | None  # the error in one sentence, with the line of the user's code that raised it, if known
    stopped_by: str  # the signal that asked this process to stop during the call, such as "SIGINT"; empty if none did
    oom_killed: bool = False  # True if SIGKILL ended the child and the kernel counted an out-of-memory kill meanwhile
    lost_s: float = math.inf
    """The `time.monotonic` at which it was clear that no result would come; infinite if there is a result."""

    def raise_interrupt(self) -> None:
        """Raise KeyboardInterrupt, with the signal's name, if this process was asked to stop during the call."""
        if self.stopped_by:
            raise KeyboardInterrupt(self.stopped_by)

    def unpacked(self) -> Result:
        """Return the result; raise KeyboardInterrupt if asked to stop, ChildError if there is no result."""
        self.raise_interrupt()
        if self.result is None and self.sentence is not None:
            lost = ChildError(self.sentence)
            lost.add_note(f"in the other process:\n{self.error}")  # a traceback shows it
            raise lost
        return cast("Result", self.result)


def run_isolated(
    target: NamedFunction[Result], args: tuple[object, ...], *, on_message: Send | None = None, grace_s: float = 60.0
) -> ChildExit[Result]:
    """Call `target` with `args` in a child process and wait for its end.

    The child inherits working directory, output streams and the current environment; its messages go to `on_message`.
    A stop signal to this process is passed on once. The child is killed `grace_s` seconds after the signal, after its
    own result or after this process's death, and at once at a second signal. Only errors of `on_message` are raised,
    after the child has ended.
    """
    with StopRequest() as stop:
        (ended,) = run_together(target, args, [os.environ], on_message=on_message, stop=stop, grace_s=grace_s)
    return ended


def run_together(
    target: NamedFunction[Result],
    args: tuple[object, ...],
    environments: Sequence[Mapping[str, str]],
    *,
    on_message: Send | None = None,
    stop: StopRequest,
    watch: Callable[[], bool] = lambda: False,
    grace_s: float = 60.0,
) -> list[ChildExit[Result]]:
    """Call `target` with `args` in a child process for each environment, and wait until all have ended.

    See `run_isolated`. Once a child is lost, or `watch`, which is polled five times a second, returns True, the
    children that do not end by themselves are killed four seconds later.
    """
    order = pickle.dumps((target, args))
    children: list[_Child[Result]] = []
    try:
        for environment in environments:
            children.append(_Child(order, dict(environment), grace_s))
    except (EOFError, OSError) as error:
        _end(children)
        sentence = f"no process could be started: {error!r}"
        return [ChildExit(_SERVER_LOST, None, sentence, sentence, stop.reason) for _ in environments]
    _follow(children, stop, on_message, watch)
    return [child.exit(stop.reason) for child in children]


def _follow(
    children: "Sequence[_Child[Result]]", stop: StopRequest, on_message: Send | None, watch: Callable[[], bool]
) -> None:
    known, has_requested = adopt_orphans(), False
    try:
        while any(child.is_alive() for child in children):
            _receive(children, on_message, _TICK_S)
            if stop.requested and not has_requested:
                has_requested = True
                for child in children:
                    child.request_stop(stop.reason)
            is_lost, are_lost = watch(), [child.is_lost() for child in children]
            for child, has_failed in zip(children, are_lost, strict=True):
                if is_lost or (any(are_lost) and not has_failed):
                    child.deadline_s = min(child.deadline_s, time.monotonic() + _LEFT_S)
                child.kill_if_late()
        while _receive(children, on_message, 0):
            pass
    except KeyboardInterrupt:
        for child in children:
            child.kill("killed at the second signal")
    finally:
        _end(children)
        end_orphans(known)


def _end(children: "Sequence[_Child[Result]]") -> None:
    for child in children:  # after an exception they still run, and take the closed pipe for their parent's death
        child.pipe.close()
    for child in children:
        child.end()


def _receive(children: "Sequence[_Child[Result]]", on_message: Send | None, timeout_s: float) -> bool:
    """Wait for a message or an end, and take at most one message per child; return True if any was taken."""
    ready = connection.wait([source for child in children for source in child.sources()], timeout_s)
    taken = [child.take(on_message) for child in children if child.pipe in ready]
    return any(taken)


class _Child(Generic[Result]):
    def __init__(self, order: bytes, environment: Mapping[str, str], grace_s: float) -> None:
        self._grace_s = grace_s
        self.deadline_s = math.inf
        self._lost_s = math.inf
        self._killed_here = False
        self._returned = False
        self._result: Result | None = None
        self._fault: Fault | None = None
        self._kills_before = num_oom_kills()
        self._process, self.pipe = start_process(serve, (order, environment, grace_s), environment)
        self._pipe_ended = False

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def is_lost(self) -> bool:
        """Return True if it has ended without a result, and no message is left."""
        if self._fault is None and (self._returned or self.is_alive() or self._has_more()):
            return False
        if not self._killed_here:
            self._lost_s = min(self._lost_s, time.monotonic())
        return True

    def _has_more(self) -> bool:
        with suppress(EOFError, OSError):
            return not self._pipe_ended and self.pipe.poll()
        return False

    def end(self) -> None:
        """Wait for its end for the grace period, then kill it."""
        self._process.join(self._grace_s)
        self._process.kill()
        self._process.join()
        if self._process.exitcode == _SERVER_LOST and sys.platform != "win32":
            # It outlived its fork server, and would train on beside the next run.
            assert self._process.pid is not None
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def exit(self, stopped_by: str) -> ChildExit[Result]:
        exitcode = self._process.exitcode
        assert exitcode is not None
        fault = self._fault
        if fault is None and (exitcode != 0 or not self._returned):
            fault = Fault(sudden_end(exitcode))
        sentence, error = (None, None) if fault is None else (fault.sentence, fault.traceback or fault.sentence)
        return ChildExit(exitcode, self._result, error, sentence, stopped_by, self._oom_killed(exitcode), self._lost_s)

    def _oom_killed(self, exitcode: int) -> bool:
        if sys.platform == "win32" or exitcode != -signal.SIGKILL or self._killed_here:
            return False
        kills = num_oom_kills()
        return kills is not None and self._kills_before is not None and kills > self._kills_before

    def sources(self) -> list[int | Connection]:
        end = (self._process.sentinel,) if self.is_alive() else ()
        return [*end] if self._pipe_ended else [*end, self.pipe]

    def take(self, on_message: Send | None) -> bool:
        """Take a message; return False at the pipe's end."""
        try:
            kind, value = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):  # closed, or cut off within a message
            self._pipe_ended = True
            return False
        match kind:
            case "message" if on_message is not None:
                on_message(value)
            case "result":
                self._returned, self._result = True, value
            case "error":
                self._fault = value
        if kind != "message":
            self.deadline_s = time.monotonic() + self._grace_s
        return True

    def request_stop(self, reason: str) -> None:
        """Request a stop by the pipe: Ctrl-C reaches parent and child, and must not count twice in the child."""
        with suppress(OSError):  # it has just ended
            self.pipe.send(reason)
        self.deadline_s = time.monotonic() + self._grace_s

    def kill_if_late(self) -> None:
        if time.monotonic() > self.deadline_s and self.is_alive():
            self.kill(f"killed: it had not ended {self._grace_s:g} s after it was to")

    def kill(self, error: str) -> None:
        self._fault = self._fault or Fault(error)
        self._killed_here = True
        self._process.kill()
        self._process.join()


def sudden_end(exitcode: int) -> str:
    """The sentence about a process that ended without sending a result or an error."""
    if exitcode >= 0:
        lost = " (or its fork server was killed)" if exitcode == _SERVER_LOST else ""
        return f"ended with exit code {exitcode} before it returned{lost}"
    name = signal.Signals(-exitcode).name
    likely = " (often the system's out-of-memory killer)" if name == "SIGKILL" else ""
    return f"killed by {name}{likely}"
