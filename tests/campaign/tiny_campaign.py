"""A tiny campaign on the CPU: its command, and what it leaves."""

import json
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from campaign.state import FILES, RECORDS_NAME, State

RUN = Path(__file__).parents[2] / "sweeps/results/run.py"
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Campaign:
    """A directory as a call of the command left it, and how that ended."""

    directory: Path
    code: int
    out: str
    err: str
    packed: Path
    """A copy: a later call packs anew."""
    worker: int | None
    """The command that was at work when it was killed."""

    @property
    def state(self) -> State:
        state = State.read(self.packed)
        assert state is not None
        return state

    @property
    def statuses(self) -> list[str]:
        """Of its commands, by what is in the directory now."""
        return [entry["status"] for entry in entries_of(self.directory).values()]

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """What is packed of each run, by its directory's name."""
        with tarfile.open(self.packed / RECORDS_NAME) as archive:
            found = {entry.name: archive.extractfile(entry) for entry in archive if entry.name.endswith("run.json")}
            return {name.split("/")[2]: json.load(file) for name, file in found.items() if file is not None}


def command(directory: Path, *arguments: str) -> list[str]:
    budget = () if "--budget" in arguments else ("--budget", "300")
    return [
        sys.executable,
        "-W",
        "error",
        str(RUN),
        "device=cpu",
        "--tiny",
        "--out",
        str(directory),
        *budget,
        *arguments,
    ]


def left_in(directory: Path, code: int, out: str = "", err: str = "") -> Campaign:
    """What is in the directory now."""
    packed = directory.with_name(f"packed_{sum(1 for _ in directory.parent.glob('packed_*'))}")
    packed.mkdir()
    for path in filter(Path.is_file, (directory / "packed" / name for name in FILES)):
        shutil.copy(path, packed)
    running = directory / "running"
    worker = int(running.read_text().split()[0]) if running.is_file() else None
    return Campaign(directory, code, out, err, packed, worker)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def entries_of(directory: Path) -> dict[str, dict[str, Any]]:
    path = directory / "campaign.json"
    return json.loads(path.read_text())["entries"] if path.is_file() else {}


def beginnings(directory: Path) -> dict[str, str]:
    """When each finished run began, by its directory's name."""
    records = {path.parent.name: json.loads(path.read_text()) for path in directory.glob("runs/*/*/*/run.json")}
    return {name: record["started_at"] for name, record in records.items() if record["status"] == "completed"}
