"""What a launcher tells the processes of its command, by an environment variable, and they tell it, by files."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

VARIABLE: Final = "AMPSWEEP_RECORD"
"""The same as in `startup/sitecustomize.py`, which imports nothing of this package."""

watching: Final[list[Callable[[], None]]] = []
"""Ends the watching of this process, if it is watched by more than the doctor."""


def stand_aside(source: str) -> None:
    """End the watching of this process, whose training has a recording of its own; the watcher's source is `script`."""
    while watching and source != "script":
        watching.pop()()


def error_of_process() -> BaseException | None:
    """The error that ends this process, if any."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What the doctor asks of the processes of a command."""

    watcher: str  # `module:class`, a ScriptWatcher of a room above this one
    folder: str  # for what each process has seen
    steps: int | None = None  # end the training after these; None: at its own end


@dataclass(frozen=True, kw_only=True)
class AskedOfCommand:
    """What is to be said of a command's trainings, where the command itself does not tell."""

    arm: str | None = None  # None: the mode that the traced step proves
    claimed: str | None = None  # words such as `bf16-mixed`; None: those of the command line, else the arm's
    seed: int | None = None  # None: torch's initial seed
    experiment: str | None = None  # None: the script's name
    metric: str | None = None  # the parity metric; None: val/loss or a well-known name
    goal: str | None = None  # `minimize` or `maximize`
    log_every: int = 10
    examination: Examination | None = None  # None: recorded, and nothing more


@dataclass(frozen=True, kw_only=True)
class Session(AskedOfCommand):
    """One call of a launcher. Paths are absolute: a script may change its directory."""

    folder: str  # for the files of processes
    root: str  # of the runs; the experiment is a folder in it, unless `is_into`
    is_into: bool = False

    def variable(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_this_process(cls, source: str = "script") -> Self | None:
        """That of the launcher, if any; one of the doctor is for its own watcher, whose source is `script`."""
        given = json.loads(os.environ.get(VARIABLE, "null"))
        asked = given and given.pop("examination", None)
        if given is None or (asked and source != "script"):
            return None
        return cls(**given, examination=Examination(**asked) if asked else None)

    def tell(self, directory: Path | None = None, reason: str | None = None) -> None:
        """Tell the launcher that this process has imported torch, where it records, and why it does not."""
        told = Told(directory=None if directory is None else str(directory), reason=reason)
        file = Path(self.folder) / f"{os.getpid()}-{'' if directory is None else directory.name}.json"
        file.with_suffix(".new").write_text(json.dumps(asdict(told)), encoding="utf-8")
        file.with_suffix(".new").replace(file)

    def told(self) -> "list[Told]":
        """What all processes have told, by time."""
        files = sorted(Path(self.folder).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [Told(**json.loads(path.read_text(encoding="utf-8"))) for path in files]


@dataclass(frozen=True, kw_only=True)
class Told:
    """The last word of a process about a training, or about none."""

    directory: str | None = None  # of its record; ranks beside the first have none
    reason: str | None = None
