"""The log of wandb-core, which tells what it met where wandb 0.31 has no call for it."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.tracking.wandb.library import answered, not_connected, trouble_clause

if TYPE_CHECKING:
    import wandb


_FILES_GIVEN_UP: Final = ("file transfer: upload: failed", "runfiles: CreateRunFiles returned error")
_REFUSED: Final = re.compile(r"(?:status:|returned error) (\d{3})")
_FILE_NAME: Final = re.compile(r"\bName: (.*), Url: ")


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
