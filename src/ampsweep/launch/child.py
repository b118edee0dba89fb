"""The child's side of an isolated call: it runs the function, sends messages to the parent, and ends with it."""

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

from ampsweep.launch.signals import StopRequest
from ampsweep.standard_streams import guard_streams
from ampsweep.stop_signals import release_stop_signals
from ampsweep.text import one_line

Kind = Literal["message", "result", "error"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class NamedFunction(Generic[Result]):
    """A function by its name, for a process of its own: its module is imported only in the process that calls it.

    If the function has parameters `send` or `stop`, it gets them by keyword: `send(message)` hands a small picklable
    message to the caller and returns at once; `stop` is the StopRequest that the function must watch.
    """

    name: str
    """`package.module:function`."""

    def load(self) -> Callable[..., Result]:
        module, _, function = self.name.partition(":")
        loaded: Callable[..., Result] = getattr(importlib.import_module(module), function)
        return loaded


@dataclass(frozen=True)
class Fault:
    """The reason why a call has no result, in one sentence, and the traceback if there is one."""

    sentence: str
    traceback: str | None = None


class Outbox:
    """Sends messages from a thread of its own, so that a slow, stopped or dead parent never holds up a training."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._letters: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="outbox", daemon=True)
        self._thread.start()

    def put(self, kind: Kind, value: object) -> None:
        self._letters.put(pickle.dumps((kind, value)))

    def close(self) -> None:
        """Wait until the parent has taken all messages, or is gone."""
        self._letters.put(None)
        self._thread.join()

    def _deliver(self) -> None:
        for letter in iter(self._letters.get, None):
            try:
                self._pipe.send_bytes(letter)
            except OSError:
                return  # the parent is gone: there is nobody to tell


def serve(pipe: Connection, order: bytes, environment: Mapping[str, str], grace_s: float) -> None:
    """Call the function of the pickled `order`, a `NamedFunction` with its arguments, and report through `pipe`."""
    outbox = Outbox(pipe)
    os.environ.clear()
    os.environ.update(environment)
    # multiprocessing made the way this child was started its default; a run's own workers start as they do elsewhere.
    multiprocessing.set_start_method(None, force=True)
    guard_streams()
    over = threading.Event()
    with StopRequest() as stop:
        release_stop_signals()
        threading.Thread(target=_obey_parent, args=(pipe, stop, over, grace_s), name="parent", daemon=True).start()
        try:
            _call(order, outbox, stop)
        except SystemExit as leave:
            outbox.put("error", Fault(one_line(leave)))
            raise
        except BaseException as error:  # noqa: BLE001  the edge of a process: whatever ended the run is what it reports
            outbox.put("error", Fault(one_line(error), traceback.format_exc()))
            sys.exit(1)
        finally:
            outbox.close()
            # A fork server's child leaves through os._exit, without the exit functions (wandb's teardown among them)
            # that every other process runs. Where they run later all the same, they find their list empty.
            atexit._run_exitfuncs()
            over.set()


def _call(order: bytes, outbox: Outbox, stop: StopRequest) -> None:
    # Only now, for these imports must see the environment and the stop request in place.
    target: NamedFunction[Any]
    target, args = pickle.loads(order)
    function = target.load()
    offered: dict[str, object] = {"send": partial(outbox.put, "message"), "stop": stop}
    asked_for = inspect.signature(function).parameters
    outbox.put("result", function(*args, **{key: value for key, value in offered.items() if key in asked_for}))


def _obey_parent(pipe: Connection, stop: StopRequest, over: threading.Event, grace_s: float) -> None:
    """Pass on the parent's requests to stop. The end of the pipe is the parent's death: end once the call is `over`,
    for nobody takes its result, and after a grace whatever it does."""
    try:
        while True:
            stop.request(pipe.recv())
    except (EOFError, OSError):
        stop.request("the parent process died")
        over.wait(grace_s)
        os._exit(1)
