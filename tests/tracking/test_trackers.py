"""Several trackers behave as one, and none keeps another from being finished."""

from pathlib import Path

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord, read_history
from ampsweep.tracking.base import Tracker, Trackers
from ampsweep.tracking.factory import make_trackers
from ampsweep.tracking.memory import InMemoryTracker
from ampsweep.tracking.wandb.process import WandbAddress


class Failing(InMemoryTracker):
    """Fails where it is told to, after having done the call."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        super().start(record, directory, resume_after=resume_after)
        if self.call == "start":
            raise OSError("start failed")

    def finish(self, record: RunRecord) -> None:
        super().finish(record)
        if self.call == "finish":
            raise OSError("finish failed")


def test_every_tracker_gets_the_same_run(record: RunRecord, tmp_path: Path) -> None:
    first, second = InMemoryTracker(), InMemoryTracker()
    trackers = Trackers([first, second])
    trackers.start(record, tmp_path, resume_after=4)
    trackers.log({"train/loss": 2.0}, 5)
    trackers.log({"train/loss": 1.0}, 6)
    record.status = "completed"
    trackers.finish(record)
    for tracker in (first, second):
        assert tracker.calls == ["start", "log", "log", "finish"]
        assert tracker.rows == [{"step": 5, "train/loss": 2.0}, {"step": 6, "train/loss": 1.0}]
        assert (tracker.directory, tracker.resume_after) == (tmp_path, 4)
        assert [tracker.started[0].status, tracker.finished[0].status] == ["interrupted", "completed"]


def test_all_are_finished_in_order_even_when_one_fails(record: RunRecord, tmp_path: Path) -> None:
    order: list[str] = []

    class Noting(Failing):
        def finish(self, record: RunRecord) -> None:
            order.append(self.call)
            super().finish(record)

    trackers = Trackers([Noting("finish"), Noting("never")])
    trackers.start(record, tmp_path, resume_after=None)
    with pytest.raises(OSError, match="finish failed"):
        trackers.finish(record)
    assert order == ["finish", "never"]


def test_a_start_that_fails_leaves_the_rest_unstarted_and_finishable(record: RunRecord, tmp_path: Path) -> None:
    first, second = InMemoryTracker(), InMemoryTracker()
    trackers = Trackers([first, Failing("start"), second])
    with pytest.raises(OSError, match="start failed"):
        trackers.start(record, tmp_path, resume_after=None)
    assert second.calls == []
    trackers.finish(record)
    assert first.calls == ["start", "finish"]


def test_history_is_written_first_and_also_where_wandb_is_disabled(record: RunRecord, tmp_path: Path) -> None:
    said: list[str] = []
    trackers = make_trackers(TrackingConfig(mode="disabled"), None, said.append)
    _is_tracker: Tracker = trackers
    trackers.start(record, tmp_path, resume_after=None)
    trackers.log({"train/loss": 2.0}, 1)
    trackers.finish(record)
    assert read_history(tmp_path) == [{"step": 1, "train/loss": 2.0}]
    assert not said
    assert not record.wandb


def test_history_comes_before_wandb(shared: WandbAddress, record: RunRecord) -> None:
    trackers = make_trackers(TrackingConfig(mode="offline"), None, print, shared)
    assert [type(one).__name__ for one in trackers.trackers] == ["HistoryFile", "WandbClient"]
    trackers.finish(record)
