"""A tiny call of the campaign on the CPU: its command, and what it leaves."""

import json
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from campaign.call import Call

RUN = Path(__file__).parents[2] / "sweeps/results/run.py"
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Made:
    """The directory of a call, and how its command ended."""

    directory: Path
    code: int
    out: str = ""
    err: str = ""

    @property
    def packed(self) -> Path:
        return self.directory / "call1.tar.xz"

    @property
    def files(self) -> dict[str, str]:
        """What is packed, by its path."""
        with tarfile.open(self.packed) as archive:
            found = {entry.name: archive.extractfile(entry) for entry in archive}
            return {name: file.read().decode() for name, file in found.items() if file is not None}

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(text) for name, text in self.files.items() if name.endswith("run.json")]

    def call(self, place: Path) -> Call:
        return Call.unpack(self.packed, place)


def command(directory: Path, *arguments: str) -> list[str]:
    given = (*arguments, "device=cpu", "--tiny", "--out", str(directory))
    return [sys.executable, "-W", "error", str(RUN), "1", *given]


def of_group(directory: Path) -> list[psutil.Process]:
    """The processes that run a command of this call."""
    named = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"]]
    return [process for process in named if any(str(directory) in word for word in process.info["cmdline"])]
