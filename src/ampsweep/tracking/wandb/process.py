"""wandb in processes of its own: whoever waits for one can end it, so that no wait for W&B is without a limit."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from ampsweep.socket_folder import socket_folder
from ampsweep.tracking.wandb.library import CORE_ENDED, WandbError

KEY_BYTES: Final = 32
FAMILY: Final = socket.AF_UNIX if hasattr(socket, "AF_UNIX") else socket.AF_INET
_MAIN: Final = "import sys; sys.path[:] = {path!r}; from ampsweep.tracking.wandb.service import main; main({folder!r})"
_ANSWER_S: Final = 30.0
"""The time that the W&B process may take to begin something; at once, as a rule, once it has imported wandb."""
_END_S: Final = 10.0
"""The time that it may take to end: as a rule none, unless a training has been killed."""


@dataclass(frozen=True)
class Answer:
    """The last that is heard of a function in a process of its own: its result, or the error that ended it."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class WandbWork:
    """A function at work in a process of its own, which may send messages before its end."""

    connection: "Connection[Any, Any]"
    pid: int

    def result(self, silence_s: float | None, on_message: Callable[[Any], None]) -> Any:
        """Wait for what the function returns, no longer than ``silence_s`` from one message to the next.

        Raises:
            WandbError: it fails, has been silent for too long, or was killed.
            OSError: a file on this machine is at fault; a RecordError, if that is a run's.
        """
        answer: Any = None
        try:
            while not isinstance(answer, Answer):
                if not self.connection.poll(silence_s):
                    raise WandbError(f"not done in {silence_s:.0f} s")
                answer = self.connection.recv()
                if not isinstance(answer, Answer):
                    on_message(answer)
        except (EOFError, ConnectionError) as error:
            raise WandbError(CORE_ENDED) from error
        finally:
            self.connection.close()
            if not isinstance(answer, Answer):
                kill_family(self.pid)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def tell_end(self) -> None:
        """Tell the function that it is to come to its end, as it is also told by the death of this process."""
        with suppress(OSError):  # it has ended
            self.connection.send(None)


@dataclass(frozen=True)
class WandbAddress:
    """The address of a W&B process on this machine, good while that lives."""

    path: str
    key: bytes
    pid: int

    def begin(self, function: Callable[..., Any], *arguments: Any) -> WandbWork:
        """Have ``function(caller, *arguments)`` called in a new process that has imported wandb.

        Raises:
            OSError, EOFError: the W&B process has ended, or does not answer and is killed.
        """
        with socket.socket(FAMILY) as plain:
            plain.settimeout(_ANSWER_S)
            plain.connect(self.path if FAMILY != socket.AF_INET else ("127.0.0.1", int(self.path)))
            plain.settimeout(None)
            connection = Connection(plain.detach())
        try:
            connection.send_bytes(self.key)
            if not connection.poll(_ANSWER_S):
                kill_family(self.pid)
                raise TimeoutError("does not answer")
            work = WandbWork(connection, connection.recv())
            connection.send((function, arguments))
        except BaseException:
            connection.close()
            raise
        return work

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        silence_s: float,
        on_message: Callable[[Any], None] = lambda message: None,
    ) -> Any:
        """Begin that and wait for its result; raises what `WandbWork.result` does."""
        try:
            work = self.begin(function, *arguments)
        except (OSError, EOFError) as error:
            raise WandbError(f"the W&B process {'ended' if isinstance(error, EOFError) else error}") from error
        return work.result(silence_s, on_message)


class WandbProcess:
    """A process that has imported wandb and is forked for each task with it; it lives inside `with`.

    It starts while the caller goes on. Signals do not reach it: it ends when this process leaves the context or dies.
    """

    def __enter__(self) -> Self:
        self._key = secrets.token_bytes(KEY_BYTES)
        # Of this process and its wandb-core, which leaves folders there; a long path has no room for sockets.
        self._temporary = TemporaryDirectory(dir=socket_folder(), prefix="w", ignore_cleanup_errors=True)
        here = self._temporary.name
        environment = {"WANDB_PROGRAM": sys.argv[0], **os.environ}  # what W&B is to name as the run's program
        environment |= {"TMPDIR": here, "WANDB_SILENT": "true"}
        home = os.path.expanduser("~")  # noqa: PTH111  there may be none
        if not (os.path.isdir(home) and os.access(home, os.W_OK)):  # noqa: PTH112  what is to be sent stays by the runs
            kept = os.path.join(os.path.abspath(environment.get("WANDB_DIR", "")), "wandb")  # noqa: PTH100,PTH118
            environment = {"WANDB_CACHE_DIR": here, "WANDB_CONFIG_DIR": here, "WANDB_DATA_DIR": kept} | environment
        environment.pop("WANDB_SERVICE", None)  # a parent's wandb-core: what becomes of it is not ours to decide
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(path=sys.path, folder=here)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which `address` will tell
            self._process.stdin.write(self._key)
            self._process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended before it was told the key
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            kill_family(self._process.pid)
            self._process.wait()
        self._process.stdout.close()
        self._temporary.cleanup()

    @cached_property
    def address(self) -> WandbAddress:
        """The address of the W&B process, for any process of this machine; waits until it has begun."""
        assert self._process.stdout is not None
        path = self._process.stdout.readline().decode().rstrip("\n")
        return WandbAddress(path, self._key, self._process.pid)


def kill_family(pid: int) -> None:
    """End a process at once with all that it has started, stopped or not; also a wandb-core that has outlived it."""
    import psutil  # only here: no training that goes well waits for the import

    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (*process.children(recursive=True), process):  # first what might send more
            with suppress(psutil.NoSuchProcess):
                one.kill()
        return
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.name().startswith("wandb-core") and str(pid) in one.cmdline():
                one.kill()
