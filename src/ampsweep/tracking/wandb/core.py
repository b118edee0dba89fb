"""wandb-core, the process that wandb starts beside ours: how long it is waited for, its end, what it is asked, its log.

What wandb has no public name for is used with its reason; its log tells what it met, for which wandb 0.31 has no call.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import psutil

from ampsweep.tracking.wandb.library import TooLongError, answered, lost_errors, not_connected, trouble_clause

if TYPE_CHECKING:
    import wandb


CORE_SILENT: Final = "wandb-core, W&B's own process on this machine, does not answer"
_ANSWER_S: Final = 1.0
_MOMENT_S: Final = 0.5
_LOOK_S: Final = 0.25
_END_S: Final = 5.0
"""The time that wandb-core may take to end: by then all runs are finished, and it needs a tenth of a second."""
_FILES_GIVEN_UP: Final = ("file transfer: upload: failed", "runfiles: CreateRunFiles returned error")
_REFUSED: Final = re.compile(r"(?:status:|returned error) (\d{3})")
_FILE_NAME: Final = re.compile(r"\bName: (.*), Url: ")


def end_wandb(within_s: float = _END_S) -> None:
    """Stop the wandb-core of this process and wait for its end; one that a parent shares with it stays.

    wandb 0.31 waits for it without a limit, and where the connection broke, for one that was never told to end. Here it
    is killed once ``within_s`` have passed, or where it could not be told.
    """
    import wandb

    # Where wandb-core ended with an error, wandb would exit this process with the same.
    with CoreLimit(within_s, why=None):
        try:
            wandb.teardown()
        except SystemExit:
            pass
        except lost_errors():
            kill_wandb_core()


def kill_wandb_core() -> None:
    """End the wandb-core of this process at once; code that waits for its answer gets an error within milliseconds."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name().startswith("wandb-core"):
                child.kill()
                child.wait(_MOMENT_S)


class CoreLimit:
    """A limit, inside `with`, for what waits for wandb-core: that is killed where nothing has moved for long.

    Code that waits for its answer then gets one of `lost_errors`, in whose place TooLongError is raised on leaving.
    """

    def __init__(self, seconds: float, why: str | None = CORE_SILENT) -> None:
        """``seconds`` without a call of `moved` are too long; ``why`` says of what, None leaves the error as it is."""
        self._seconds, self._why = seconds, why
        self._moved_at = time.monotonic()
        self._over = Event()
        self._is_passed = False
        self._thread = Thread(target=self._watch, name="wandb limit", daemon=True)

    def moved(self) -> None:
        """Begin to count again."""
        self._moved_at = time.monotonic()

    def change(self, seconds: float) -> None:
        """Begin to count again, up to another number of seconds."""
        self._seconds, self._moved_at = seconds, time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._is_passed and self._why is not None and isinstance(error, lost_errors()):
            raise TooLongError(self._why) from error

    def _watch(self) -> None:
        while (left_s := self._moved_at + self._seconds - time.monotonic()) > 0:
            if self._over.wait(min(left_s, _LOOK_S)):
                return
        self._is_passed = True
        kill_wandb_core()


def abandon_wandb() -> None:
    """Run `end_wandb` now, whatever wandb-core is busy with; code that waits for its answer gets an error."""
    end_wandb(_MOMENT_S)  # not at once: a wandb that has lost its wandb-core does not wait for it


@dataclass(frozen=True)
class Sending:
    """Something that wandb-core is sending."""

    what: str
    progress: str
    trouble: str
    """The obstacle on its way to the server, as a clause; empty where there is none."""


def sendings(run: "wandb.Run") -> tuple[Sending, ...]:
    """All that wandb-core is sending for ``run``; to be asked in any thread and even while the run is being finished.

    Raises `lost_errors`. wandb 0.31 shows this to people while a run finishes, but has no public call for it.
    """
    import wandb
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # whose classes come into being when it is imported
    interface: Any = run._interface

    async def ask() -> Any:
        request = messages.Request(operations=messages.OperationStatsRequest())
        handle = await interface.deliver_async(messages.Record(request=request))
        return await handle.wait_async(timeout=_ANSWER_S)

    async def ask_in_time() -> Any:
        # A wandb-core that reads nothing does not even take the question.
        return await asyncio.wait_for(ask(), _ANSWER_S)

    found = wandb.setup().asyncer.run(ask_in_time).response.operations_response.operation_stats.operations
    each = (one for all in found for one in (all, *all.subtasks))
    return tuple(Sending(one.desc, one.progress, trouble_clause(one.error_status)) for one in each)


@dataclass(frozen=True)
class Opening:
    """A run that wandb-core is opening, by its own word."""

    asking_since: float
    """The time at which it began to ask the server, on the clock of `time.time`."""
    trouble: str | None
    """The clause about what it met instead of an answer; None where it has met nothing yet."""


def opening_of(directory: Path, since: float) -> Opening | None:
    """The opening, since then, of a run whose files are below ``directory``; None where wandb-core is not there yet.

    wandb 0.31 answers no question before a run is open; its wandb-core's log, lines of JSON, tells.
    """
    logs = [log for log in directory.glob("wandb/*run-*/logs/debug-internal.log") if log.stat().st_mtime >= since]
    openings = (_opening(log) for log in logs)
    return next((one for one in openings if one is not None and one.asking_since >= since), None)


def _opening(log: Path) -> Opening | None:
    asking_since, trouble = None, None
    for line in _logged(log):
        if line.message == "sender: started":
            asking_since = line.time
        trouble = line.trouble or trouble
    return None if asking_since is None else Opening(asking_since, trouble)


def met(run: "wandb.Run", since: float) -> str | None:
    """The clause about what wandb-core last met, since then, where it tries again; None where it met nothing.

    To be asked where its `sendings` say nothing: questions of its own, such as that for the addresses of files, are
    not among them.
    """
    troubles = [line.trouble for line in _logged(_log_of(run)) if line.time >= since and line.trouble is not None]
    return troubles[-1] if troubles else None


def refused_file(run: "wandb.Run", since: float) -> str | None:
    """The clause about the first file, since then, that wandb-core gave up to send; None where it sent all.

    It gives up at once what is refused (403), and ends the run as if nothing had been.
    """
    return next((line.refusal for line in _logged(_log_of(run)) if line.time >= since and line.refusal), None)


def _log_of(run: "wandb.Run") -> Path:
    return Path(run.settings.log_internal)


@dataclass(frozen=True)
class _LogLine:
    """A line of wandb-core's log, at a time on the clock of `time.time`."""

    time: float
    message: str
    said: dict[str, Any]

    @property
    def trouble(self) -> str | None:
        """The clause about what it met and tries again."""
        match self.message:
            case "api: retrying HTTP error":
                return answered(int(self.said["status"]))
            case "api: retrying error":
                return trouble_clause(str(self.said["error"]))
        return None

    @property
    def refusal(self) -> str | None:
        """The clause about a file that it does not try to send again, or about all."""
        if not self.message.startswith(_FILES_GIVEN_UP):
            return None
        file = _FILE_NAME.search(str(self.said.get("task", "")))
        status = _REFUSED.search(self.message)
        what = answered(int(status[1])) if status else not_connected(self.message.rpartition(": ")[2])
        return f"{what} to {'files' if file is None else file[1]}"


def _logged(log: Path) -> Iterator[_LogLine]:
    with suppress(FileNotFoundError):
        for line in log.read_text(errors="replace").splitlines():
            with suppress(ValueError, TypeError, LookupError):  # a line that is being written, or of another kind
                said = json.loads(line)
                yield _LogLine(datetime.fromisoformat(said["time"]).timestamp(), str(said["msg"]), said)
