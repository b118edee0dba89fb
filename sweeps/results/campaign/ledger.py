"""What the campaign has done so far, in one small file that outlives its process."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ampsweep.record import write_atomically
from ampsweep.record.typed import typed

NAME: Final = "campaign.json"
BY_HAND_NAME: Final = "by_hand.jsonl"
"""A line a measurement by hand: its block, arm and figures."""

Status = Literal["done", "failed", "cut off", "not begun"]


@dataclass(kw_only=True)
class Entry:
    """What became of a block."""

    experiment: str
    status: Status
    reason: str | None = None
    """Why it is not done, or not all of it."""
    arms: list[str] = field(default_factory=list)
    """Those that are done."""
    seconds: float = 0.0
    command: str | None = None
    """As a reader would type it."""


@dataclass(kw_only=True)
class Call:
    """One call of the campaign's command."""

    started_at: str
    budget_s: float
    used_s: float = 0.0


@dataclass(kw_only=True)
class GpuTests:
    """Outcomes of the suite's own GPU tests, by name: `passed`, or what else came of one and why."""

    seconds: float
    outcomes: dict[str, str]


@dataclass(kw_only=True)
class Ledger:
    """The whole campaign; entries are in the order in which their blocks were first met."""

    scale: str
    device: str
    entries: dict[str, Entry] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    tests: GpuTests | None = None
    commit: str | None = None
    """Of the checkout, at the last call."""
    schema: int = 1

    def write(self, directory: Path) -> None:
        """Write it into `directory`, whole or not at all."""
        write_atomically(directory / NAME, json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def read(directory: Path) -> "Ledger | None":
        """That of `directory`; None where there is none.

        Raises:
            ValueError: the file is no ledger.
        """
        path = directory / NAME
        if not path.is_file():
            return None
        ledger: Ledger = typed(Ledger)(json.loads(path.read_text(encoding="utf-8")))
        return ledger


def read_by_hand(directory: Path) -> list[dict[str, Any]]:
    """The measurements by hand, a block's latest only; a line that was cut off is passed over."""
    path = directory / BY_HAND_NAME
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if line.endswith("}"):
            row = json.loads(line)
            rows[row["block"], row["arm"]] = row
    return list(rows.values())
