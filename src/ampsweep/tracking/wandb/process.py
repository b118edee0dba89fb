"""wandb in processes that the caller can kill, so that every wait for W&B has a limit."""

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
Listener = Callable[[Any], None]
_ANSWER_S: Final = 30.0  # limit of the W&B process to begin a task; it takes none once it has imported wandb
_END_S: Final = 10.0  # limit of the W&B process to end; it takes none unless a training was killed


@dataclass(frozen=True)
class Answer:
    """The last message of a task: its result, or its error."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class WandbWork:
    connection: "Connection[Any, Any]"
    pid: int  # of the process of its own

    def result(self, silence_s: float | None, on_message: Listener) -> Any:
        """Wait for the task's result; it may be silent for ``silence_s`` between two messages (None: no limit). Raises
        WandbError if it failed, was silent for too long, or was killed; OSError or RecordError for a local file."""
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
        """Ask the task to finish, as the death of this process would."""
        with suppress(OSError):  # it has ended
            self.connection.send(None)


@dataclass(frozen=True)
class WandbAddress:
    path: str
    key: bytes
    pid: int

    def begin(self, function: Callable[..., Any], *arguments: Any) -> WandbWork:
        """Call ``function(caller, *arguments)`` in a new process that has imported wandb. Raises OSError or EOFError if
        the W&B process has ended, or did not answer and was killed."""
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
        self, function: Callable[..., Any], *arguments: Any, silence_s: float, on_message: Listener = lambda _: None
    ) -> Any:
        try:
            work = self.begin(function, *arguments)
        except (OSError, EOFError) as error:
            raise WandbError(f"the W&B process {'ended' if isinstance(error, EOFError) else error}") from error
        return work.result(silence_s, on_message)


class WandbProcess:
    """A process that imports wandb once and is forked for each task; it ends with this context or this process."""

    def __enter__(self) -> Self:
        self._key = secrets.token_bytes(KEY_BYTES)
        # Its own, because wandb-core leaves folders there; short, because of the limit of a socket's path.
        self._temporary = TemporaryDirectory(dir=socket_folder(), prefix="w", ignore_cleanup_errors=True)
        here = self._temporary.name
        environment = {"WANDB_PROGRAM": sys.argv[0], **os.environ}  # W&B shows it as the run's program
        environment |= {"TMPDIR": here, "WANDB_SILENT": "true"}
        home = os.path.expanduser("~")  # noqa: PTH111  it may not exist
        if not os.access(home, os.W_OK):  # unsent data stays with the runs
            kept = os.path.join(os.path.abspath(environment.get("WANDB_DIR", "")), "wandb")  # noqa: PTH100,PTH118
            environment = {"WANDB_CACHE_DIR": here, "WANDB_CONFIG_DIR": here, "WANDB_DATA_DIR": kept} | environment
        environment.pop("WANDB_SERVICE", None)  # a parent's wandb-core may end at any time
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(path=sys.path, folder=here)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, as users of `address` will see
            self._process.stdin.write(self._key)
            self._process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it had read the key
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
        """The address for any process of this machine; waits until the W&B process has begun."""
        assert self._process.stdout is not None
        path = self._process.stdout.readline().decode().rstrip("\n")
        return WandbAddress(path, self._key, self._process.pid)


def kill_family(pid: int) -> None:
    """Kill a process, stopped or not, with all its descendants; also a wandb-core that has outlived it."""
    import psutil  # slow, and only needed here

    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for member in (*process.children(recursive=True), process):  # wandb-core first, before it sends more
            with suppress(psutil.NoSuchProcess):
                member.kill()
        return
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name().startswith("wandb-core") and str(pid) in process.cmdline():
                process.kill()
