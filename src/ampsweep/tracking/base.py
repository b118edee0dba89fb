"""What records a run while it trains."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from ampsweep.record import RunRecord


class Tracker(Protocol):
    """Something that a run's rows and record are handed to."""

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Begin the run that lives in ``directory``, which exists.

        ``resume_after`` is the last step of the checkpoint the run continues from; None where it starts from nothing.
        """

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Take the metrics of one step, without the step axis. Steps only grow."""

    def finish(self, record: RunRecord) -> None:
        """End the run with its final status, summary and proof. Does nothing the second time, or without a start."""


class Trackers:
    """Several trackers as one. Each call reaches them in the order given."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Start each. If one raises, those after it stay unstarted; `finish` then ends the others."""
        for tracker in self.trackers:
            tracker.start(record, directory, resume_after=resume_after)

    def log(self, row: Mapping[str, float], step: int) -> None:
        for tracker in self.trackers:
            tracker.log(row, step)

    def finish(self, record: RunRecord) -> None:
        """Finish every one even when another fails; then the failure is raised."""
        with ExitStack() as stack:
            for tracker in reversed(self.trackers):  # a stack unwinds from its top
                stack.callback(tracker.finish, record)
