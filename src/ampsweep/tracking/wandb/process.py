"""The W&B process beside a training, as the training sees it: neither W&B's start nor its rows take its time."""

import os
import pickle
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Client, Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.record.parts import WandbFacts
from ampsweep.socket_folder import socket_folder
from ampsweep.tracking.wandb.agent import STOPPED_THERE
from ampsweep.tracking.wandb.process_messages import (
    SYNC_LATER,
    Check,
    Complete,
    Done,
    Finish,
    Open,
    Opened,
    Prepare,
    Publish,
    Published,
    Start,
    Started,
    Stopped,
)
from ampsweep.tracking.wandb.run_settings import WandbPlace, finish_timeout_s

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.comparison_run import ComparisonPage

_KEY_BYTES: Final = 32
_MAIN: Final = "import sys; sys.path[:] = {path!r}; from ampsweep.tracking.wandb.service import main; main()"
_PATIENCE_S: Final = 60.0
"""The time that the process may take to end once it has nothing to do."""

_START_S: Final = 0.4
"""The time that a start waits for W&B: about twice what it takes with a quick server, or without one."""

_FINISH_S: Final = 30.0
"""The time that an end waits for the W&B process, which is to be quicker by itself, beyond what the user says."""

_ANSWER_S: Final = 30.0
"""The time that the W&B process may take for an answer; at once, as a rule, once it has imported wandb."""

_PUBLISH_S: Final = 60.0
"""The time that it may take for a comparison, beyond what the user says."""


@dataclass(frozen=True)
class WandbAddress:
    """The address of a W&B process on this machine, good while that lives."""

    path: str
    key: bytes
    pid: int

    def check(self, config: TrackingConfig) -> None:
        """Raise ValueError where a run could not be tracked so, or the server refuses it; see `check_tracking`."""
        opened: Opened = self._asked(Check(config), _ANSWER_S)
        if opened.refusal is not None:
            raise ValueError(opened.refusal)

    def prepare(self, config: TrackingConfig) -> None:
        """Let wandb-core start for the next run, once that run is certain: wandb-core leaves files behind."""
        with suppress(EOFError, OSError), self.connect() as connection:
            connection.send(Prepare(config))

    def publish(self, page: "ComparisonPage", place: WandbPlace, directory: Path) -> Published:
        """Put a comparison on W&B; wait until it is there, or until it is certain that it will not be."""
        return self._published(Publish(page, place, directory), _PUBLISH_S + 2 * (finish_timeout_s() or 0))

    def complete(self, config: TrackingConfig, directory: Path, within_s: float) -> Published:
        """Send what W&B lacks of a run that has ended."""
        return self._published(Complete(config, directory), within_s)

    def _published(self, question: Publish | Complete, within_s: float) -> Published:
        with suppress(EOFError, OSError):
            published: Published = self._asked(question, within_s)
            return published
        return Published(failure="the W&B process ended")

    def _asked(self, question: object, within_s: float) -> Any:
        try:
            with self.connect() as connection, self.limited(within_s):
                connection.send(question)
                return connection.recv()
        except KeyboardInterrupt:  # leaving `WandbProcess` would wait for the answer
            self.kill()
            raise

    def connect(self) -> "Connection[Any, Any]":
        """Connect to the process. Raises OSError or EOFError if it has ended, or does not answer."""
        if not self.path:
            raise ConnectionRefusedError("it ended before it had an address")
        with self.limited(_ANSWER_S):
            return Client(self.path, authkey=self.key)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Kill a process that what is done inside waits for in vain: it gets an OSError or EOFError."""
        timer = Timer(seconds, self.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def kill(self) -> None:
        """End the process and its wandb-core at once, also where they are stopped."""
        import psutil  # only here: no training that goes well waits for the import

        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            for one in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    one.kill()


class WandbProcess:
    """A process that tracks the runs of a command, one at a time; it lives inside `with`.

    It starts while the caller goes on. Signals do not reach it: it ends when this process leaves the context or dies,
    after it has finished the run it was tracking.
    """

    def __init__(self, expected: Sequence[TrackingConfig] = ()) -> None:
        """``expected`` is how its runs will be tracked, as far as known: it asks the server about them at once."""
        self._key, self._expected = secrets.token_bytes(_KEY_BYTES), tuple(expected)

    def __enter__(self) -> Self:
        environment = {"WANDB_PROGRAM": sys.argv[0], **os.environ}  # what W&B is to name as the run's program
        # Of this process and its wandb-core, which leaves folders there; a long path has no room for sockets.
        self._temporary = TemporaryDirectory(dir=socket_folder(), prefix="w", ignore_cleanup_errors=True)
        environment["TMPDIR"] = here = self._temporary.name
        home = os.path.expanduser("~")  # noqa: PTH111  there may be none
        if not (os.path.isdir(home) and os.access(home, os.W_OK)):  # noqa: PTH112  what is to be sent stays by the runs
            kept = os.path.join(os.path.abspath(environment.get("WANDB_DIR", "")), "wandb")  # noqa: PTH100,PTH118
            environment = (
                {f"WANDB_{name}_DIR": here for name in ("CACHE", "CONFIG")} | {"WANDB_DATA_DIR": kept} | environment
            )
        environment.pop("WANDB_SERVICE", None)  # a parent's wandb-core: what becomes of it is not ours to decide
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        pickle.dump((self._key, self._expected), self._process.stdin)
        self._process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._address("").kill()
            self._process.wait()
        self._process.stdout.close()
        self._temporary.cleanup()

    @cached_property
    def address(self) -> WandbAddress:
        """The address of the W&B process, for any process of this machine; waits until it has started."""
        assert self._process.stdout is not None
        with self._address("").limited(_ANSWER_S):
            return self._address(self._process.stdout.readline().decode().rstrip("\n"))

    def _address(self, path: str) -> WandbAddress:
        return WandbAddress(path, self._key, self._process.pid)


class WandbClient:
    """The follower of a run that leaves it to a W&B process, whose `WandbMirror` reads the history file.

    W&B never holds up the run: its start waits for it for less than half a second, and its end for as long as W&B makes
    progress.
    """

    def __init__(
        self,
        config: TrackingConfig,
        address: WandbAddress | None,
        *,
        group: str | None,
        say: Callable[[str], None],
        on_stop: Callable[[str], None],
    ) -> None:
        """Talk to the process at ``address``, or where there is none to one of its own.

        ``group`` is the W&B group where neither the config nor the environment names one. ``say`` takes lines for the
        user, ``on_stop``, in another thread, the reason why the run is to end.

        Raises:
            ValueError: what `check_tracking` refuses.
            OSError, EOFError: there is no such process any more.
        """
        self._say, self._on_stop = say, on_stop
        self._own = ExitStack()
        if address is None:
            address = self._own.enter_context(WandbProcess()).address
        try:
            self._address, self._connection = address, address.connect()
            with address.limited(_ANSWER_S):
                self._connection.send(Open(config, group))
                opened: Opened = self._connection.recv()
            if opened.refusal is not None:
                raise ValueError(opened.refusal)
        except BaseException:
            self._own.close()
            raise
        self.mode, self.line, self._place = opened.mode, opened.line, opened.place
        self._started: SimpleQueue[Started | None] = SimpleQueue()
        self._done: SimpleQueue[Done | None] = SimpleQueue()
        self._listener = Thread(target=self._listen, name="wandb", daemon=True)
        self._is_on = False

    def start(self, record: RunRecord, directory: Path, reached: int) -> None:
        """Have the W&B run started and fill ``record.wandb``: with its id, mode and place, and more if W&B is quick."""
        id = record.wandb.id or os.environ.get("WANDB_RUN_ID") or record.run_id
        reached = max(record.wandb.last_step or 0, reached)
        record.wandb = WandbFacts(id=id, mode=self.mode, last_step=reached, **self._place)
        self._is_on = True
        self._listener.start()
        with suppress(OSError, Empty):  # lost, which `finish` will notice, or slow
            self._connection.send(Start(record, directory.resolve()))
            started = self._started.get(timeout=_START_S)
            if started is not None:
                record.wandb = started.wandb

    def finish(self, record: RunRecord) -> None:
        """Send status, figures and files, end the W&B run, and note in ``record.wandb`` how it went."""
        if self._is_on:
            self._is_on = False
            self._finish(record)
            self._listener.join(_START_S)
        if not self._listener.is_alive():
            self._connection.close()
        self._own.close()

    def _finish(self, record: RunRecord) -> None:
        done, why = None, "ended"
        try:
            with self._address.limited(limit_s := _FINISH_S + 2 * (finish_timeout_s() or 0)):
                self._connection.send(Finish(record))
            done = self._done.get(timeout=limit_s)
        except Empty:
            why = "does not answer"
            self._address.kill()
        except OSError:
            pass
        if done is None:
            record.wandb.error = f"the W&B process {why}"
            self._say(f"W&B: lost (its process {why}); {SYNC_LATER}")
        else:
            record.wandb = done.wandb

    def _listen(self) -> None:
        """Pass on the messages of the W&B process to the user, the record or the training."""
        with suppress(EOFError, OSError):
            while True:
                match self._connection.recv():
                    case Started() as started:
                        self._started.put(started)
                    case Done() as done:
                        self._done.put(done)
                    case Stopped():
                        self._on_stop(STOPPED_THERE)
                    case str() as line:
                        self._say(line)
        self._started.put(None)
        self._done.put(None)
