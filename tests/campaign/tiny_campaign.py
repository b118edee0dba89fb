"""A campaign at its tiny scale on the CPU: its command, and what it leaves."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
from campaign.ledger import Ledger
from campaign.results import Results

RUN = Path(__file__).parents[2] / "sweeps/results/run.py"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Campaign:
    """A directory, and how its command was last answered."""

    directory: Path
    code: int
    out: str
    err: str

    @property
    def packed(self) -> Path:
        return self.directory / "packed"

    @property
    def ledger(self) -> Ledger:
        ledger = Ledger.read(self.directory)
        assert ledger is not None
        return ledger

    @property
    def results(self) -> Results:
        return Results.load(self.packed)


def command(directory: Path, *arguments: str) -> list[str]:
    tiny = ("--scale", "tiny", "--device", "cpu", "--out", str(directory))
    budget = () if "--budget" in arguments else ("--budget", "300")
    return [sys.executable, "-W", "error", str(RUN), *tiny, *budget, *arguments]


@dataclass(frozen=True)
class Left:
    """What a campaign that was ended had packed, when its finished runs had begun, and which command was at work."""

    directory: Path
    packed: Path
    entries: dict[str, dict[str, object]]
    started_at: dict[str, str]
    worker: int | None


def left_in(directory: Path) -> Left:
    """What is in the directory now."""
    packed, running = directory.with_name(f"packed_{len(entries_of(directory))}"), directory / "running"
    shutil.copytree(directory / "packed", packed)
    worker = int(running.read_text().split()[0]) if running.is_file() else None
    return Left(directory, packed, entries_of(packed), beginnings(directory), worker)


def beginnings(directory: Path) -> dict[str, str]:
    """When each run began, by its directory's name."""
    records = {path.parent.name: json.loads(path.read_text()) for path in directory.glob("runs/*/*/*/run.json")}
    return {name: record["started_at"] for name, record in records.items() if record["status"] == "completed"}


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def entries_of(directory: Path) -> dict[str, dict[str, object]]:
    path = directory / "campaign.json"
    return json.loads(path.read_text())["entries"] if path.is_file() else {}
