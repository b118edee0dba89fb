"""A tracker that keeps everything in memory."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from ampsweep.metrics import STEP
from ampsweep.record import RunRecord


class InMemoryTracker:
    """Keeps rows, records and the order of calls; for tests and for use from other programs."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """`start`, `log` and `finish`, as they came."""
        self.rows: list[dict[str, float]] = []
        """As in the history file, the step axis first."""
        self.started: list[RunRecord] = []
        self.finished: list[RunRecord] = []
        """Copies of the records as they were at the call."""
        self.directory: Path | None = None
        self.resume_after: int | None = None

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        self.calls.append("start")
        self.started.append(deepcopy(record))
        self.directory, self.resume_after = directory, resume_after

    def log(self, row: Mapping[str, float], step: int) -> None:
        self.calls.append("log")
        self.rows.append({STEP: step, **row})

    def finish(self, record: RunRecord) -> None:
        self.calls.append("finish")
        self.finished.append(deepcopy(record))
