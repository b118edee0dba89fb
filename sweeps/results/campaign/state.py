"""The state of a campaign, and the two small files with its findings that leave the machine."""

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ampsweep.record import FILE_NAME, HISTORY_NAME, write_atomically
from ampsweep.record.digests import DIGEST, sealed
from ampsweep.record.run_record import run_directories
from ampsweep.record.typed import typed

NAME: Final = "campaign.json"
RECORDS_NAME: Final = "records.tar.xz"
FILES: Final = (NAME, RECORDS_NAME)
RUNS: Final = "runs"
MULTIRUN: Final = "multirun.yaml"
"""The file by which the suite knows the directory of a multirun."""

Status = Literal["done", "failed", "cut off", "not begun"]


@dataclass(kw_only=True)
class Entry:
    """The outcome of a command."""

    status: Status = "not begun"
    reason: str | None = None
    """The reason why the command is not done."""
    num_tries: int = 0
    seconds: float = 0.0
    """Seconds of all tries."""


@dataclass(kw_only=True)
class State:
    """The whole campaign; entries by command, in the order in which these were first met."""

    tiny: bool
    overrides: list[str]
    """Overrides given to every sweep of the campaign."""
    began_at: str
    """ISO 8601, UTC."""
    entries: dict[str, Entry] = field(default_factory=dict)
    by_hand: list[dict[str, Any]] = field(default_factory=list)
    """The rows that by_hand.py printed."""
    tests: list[str] = field(default_factory=list)
    """pytest's summary: a line a test, the last one with the counts."""
    commit: str | None = None
    """Commit of the checkout at the last call."""
    schema: int = 2

    def write(self, directory: Path) -> None:
        """Write the state into `directory`, atomically."""
        write_atomically(directory / NAME, json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def read(directory: Path) -> "State | None":
        """Read the state of the campaign in `directory`; None if there is none.

        Raises:
            ValueError: the file is no campaign's.
        """
        path = directory / NAME
        if not path.is_file():
            return None
        state: State = typed(State)(json.loads(path.read_text(encoding="utf-8")))
        return state


def pack(directory: Path, packed: Path) -> None:
    """Write the findings of the campaign in `directory` to `packed`: its state, and the record and history of each run.

    Records are without the machine's name and the places of files on it.
    """
    runs = directory / RUNS
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        for place in run_directories(runs):
            for name, found in _published(place).items():
                entry = tarfile.TarInfo((place.relative_to(runs) / name).as_posix())
                entry.size = len(found)
                archive.addfile(entry, io.BytesIO(found))
    packed.mkdir(parents=True, exist_ok=True)
    for name, found in {RECORDS_NAME: content.getvalue(), NAME: (directory / NAME).read_bytes()}.items():
        temporary = packed / f".{name}"  # who copies them meanwhile gets the old file or the new
        temporary.write_bytes(found)
        temporary.replace(packed / name)


def restore(packed: Path, directory: Path) -> int:
    """Unpack `packed` into `directory`, as the campaign would have left it; return the number of runs added.

    What is there already stays.

    Raises:
        OSError, tarfile.TarError: a file is damaged.
    """
    if (packed / NAME).is_file() and not (directory / NAME).exists():
        (directory / NAME).write_bytes((packed / NAME).read_bytes())
    if not (packed / RECORDS_NAME).is_file():
        return 0
    num_added = 0
    with tarfile.open(packed / RECORDS_NAME) as archive:
        for entry in archive:
            path = directory / RUNS / entry.name
            if path.exists():
                continue
            archive.extract(entry, directory / RUNS, filter="data")
            multirun = path.parents[1] / MULTIRUN
            if not multirun.exists():
                multirun.write_text("# restored from packed records\n", encoding="utf-8")
            num_added += path.name == FILE_NAME
    return num_added


def _published(place: Path) -> Mapping[str, bytes]:
    record = json.loads((place / FILE_NAME).read_bytes())
    told = ("started_at", "from_step")
    record["attempts"] = [{key: one[key] for key in told if key in one} for one in record["attempts"]]
    record["config"] |= {"output_dir": "outputs", "into": None}
    record["wandb"] = {}
    record.pop(DIGEST, None)  # of the record with these facts
    found = {FILE_NAME: sealed(json.dumps(record, indent=1) + "\n").encode()}
    if (place / HISTORY_NAME).is_file():
        found[HISTORY_NAME] = (place / HISTORY_NAME).read_bytes()
    return found
