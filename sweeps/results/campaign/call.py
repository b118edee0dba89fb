"""One call of the campaign: what became of its commands, and the one small file with its findings."""

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ampsweep.records import FILE_NAME, HISTORY_NAME
from ampsweep.records.files import DIGEST, sealed
from ampsweep.records.reading import converted
from ampsweep.records.run_record import run_directories

NAME: Final = "call.json"
RUNS: Final = "runs"

Status = Literal["done", "failed", "cut off", "not begun"]


@dataclass(kw_only=True)
class Entry:
    """The outcome of a command."""

    status: Status = "not begun"
    reason: str | None = None
    """The reason why the command is not done."""
    seconds: float = 0.0
    printed: str = ""
    """What it wrote to stdout, as far as it has come; of a sweep nothing."""


@dataclass(kw_only=True)
class Call:
    """One call, with an entry for each of its commands in their order."""

    number: int
    tiny: bool
    began_at: str
    """ISO 8601, UTC."""
    entries: dict[str, Entry]
    commit: str | None = None
    """Commit of the checkout."""
    schema: int = 3

    @property
    def file(self) -> str:
        """The name of the file that it is packed in."""
        return f"call{self.number}.tar.xz"

    def pack(self, directory: Path) -> None:
        """Write `file` into `directory`: this call, and the record and history of each run in `directory`/runs.

        Records are without the machine's name and the places of files on it.
        """
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:xz", preset=2) as archive:
            found = {NAME: (json.dumps(asdict(self), indent=1) + "\n").encode()}
            for place in run_directories(directory / RUNS):
                within = place.relative_to(directory)
                found |= {(within / name).as_posix(): text for name, text in _published(place).items()}
            for name, text in found.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text))
        temporary = directory / f".{self.file}"  # who copies it meanwhile gets the old file or the new
        temporary.write_bytes(content.getvalue())
        temporary.replace(directory / self.file)

    @staticmethod
    def unpack(packed: Path, directory: Path) -> "Call":
        """Unpack the file of a call.

        Raises:
            OSError, ValueError, tarfile.TarError: it is missing, damaged, or no call's.
        """
        with tarfile.open(packed) as archive:
            archive.extractall(directory, filter="data")
        content = json.loads((directory / NAME).read_text(encoding="utf-8"))
        return converted(content, Call)


def _published(place: Path) -> Mapping[str, bytes]:
    record: dict[str, Any] = json.loads((place / FILE_NAME).read_bytes())
    told = ("started_at", "from_step", "warmup_steps")
    record["attempts"] = [{key: one[key] for key in told if key in one} for one in record["attempts"]]
    record["config"] |= {"output_dir": "outputs", "into": None}
    record["wandb"] = {}
    record.pop(DIGEST, None)  # of the record with these facts
    found = {FILE_NAME: sealed(json.dumps(record, indent=1) + "\n").encode()}
    if (place / HISTORY_NAME).is_file():
        found[HISTORY_NAME] = (place / HISTORY_NAME).read_bytes()
    return found
