"""The child process of an isolated call: calls the function, sends messages to the parent, and dies with it."""

import atexit
import importlib
import inspect
import multiprocessing
import os
import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Generic, Literal, TypeVar

from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.standard_streams import guard_streams
from ampsweep.stop_signals import unblock_stop_signals
from ampsweep.text import one_line

Kind = Literal["message", "result", "error"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class NamedFunction(Generic[Result]):
    """A function by its name, `package.module:function`; only the process that calls it imports its module.

    Parameters called `send` and `stop` are passed by keyword: `send(message)` queues a small picklable message for the
    caller and returns at once; `stop` is the StopRequest that the function must watch.
    """

    name: str

    def load(self) -> Callable[..., Result]:
        module, _, function = self.name.partition(":")
        loaded: Callable[..., Result] = getattr(importlib.import_module(module), function)
        return loaded


@dataclass(frozen=True)
class Fault:
    """The reason why a call has no result, and the traceback, if any."""

    sentence: str
    traceback: str | None = None


class Outbox:
    """Sends messages from its own thread, so that a slow, stopped or dead parent never blocks a training."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="outbox", daemon=True)
        self._thread.start()

    def put(self, kind: Kind, value: object) -> None:
        self._messages.put(pickle.dumps((kind, value)))

    def close(self) -> None:
        """Wait until the parent has received all messages, or is dead."""
        self._messages.put(None)
        self._thread.join()

    def _deliver(self) -> None:
        for message in iter(self._messages.get, None):
            try:
                self._pipe.send_bytes(message)
            except OSError:
                return  # the parent is dead


def serve(pipe: Connection, order: bytes, environment: Mapping[str, str], grace_s: float) -> None:
    """Unpickle `order`, a `NamedFunction` with its arguments, call it, and report through `pipe`."""
    outbox = Outbox(pipe)
    os.environ.clear()
    os.environ.update(environment)
    # multiprocessing made this child's start method its default; a run's own workers start as they do elsewhere.
    multiprocessing.set_start_method(None, force=True)
    guard_streams()
    over = threading.Event()
    with StopRequest() as stop:
        unblock_stop_signals()
        threading.Thread(target=_obey_parent, args=(pipe, stop, over, grace_s), name="parent", daemon=True).start()
        try:
            _call(order, outbox, stop)
        except SystemExit as leave:
            outbox.put("error", Fault(one_line(leave)))
            raise
        except BaseException as error:  # noqa: BLE001  the parent gets whatever ended the run
            outbox.put("error", Fault(one_line(error), traceback.format_exc()))
            sys.exit(1)
        finally:
            outbox.close()
            # A fork server's child leaves through os._exit, which skips exit functions such as wandb's teardown. In
            # other processes the list is empty by the time that Python runs it.
            atexit._run_exitfuncs()
            over.set()


def _call(order: bytes, outbox: Outbox, stop: StopRequest) -> None:
    # The imports must see the environment and the stop request.
    target: NamedFunction[Any]
    target, args = pickle.loads(order)
    function = target.load()
    available: dict[str, object] = {"send": partial(outbox.put, "message"), "stop": stop}
    parameters = inspect.signature(function).parameters
    outbox.put("result", function(*args, **{key: value for key, value in available.items() if key in parameters}))


def _obey_parent(pipe: Connection, stop: StopRequest, over: threading.Event, grace_s: float) -> None:
    """Forward the parent's stop requests. When the pipe ends, the parent is dead: exit once the call is over, at the
    latest after the grace period."""
    try:
        while True:
            stop.request(pipe.recv())
    except (EOFError, OSError):
        stop.request("the parent process died")
        over.wait(grace_s)
        os._exit(1)
