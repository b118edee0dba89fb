"""Rows go to the history file alone; who shows the run elsewhere follows it, and ends whatever happens."""

from copy import deepcopy
from pathlib import Path

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import HISTORY_NAME, RecordError, RunRecord, read_history
from ampsweep.tracking.tracker import Tracker, make_tracker
from ampsweep.tracking.wandb.process import WandbAddress


class InMemoryFollower:
    """Keeps the calls in their order, and copies of the records as they were; fails where it is told to."""

    def __init__(self, failing: str | None = None) -> None:
        self.failing = failing
        self.calls: list[str] = []
        self.records: list[RunRecord] = []
        self.directory: Path | None = None
        self.reached: int | None = None

    def start(self, record: RunRecord, directory: Path, reached: int) -> None:
        self.directory, self.reached = directory, reached
        self._note("start", record)

    def finish(self, record: RunRecord) -> None:
        self._note("finish", record)

    def _note(self, call: str, record: RunRecord) -> None:
        self.calls.append(call)
        self.records.append(deepcopy(record))
        if call == self.failing:
            raise OSError(f"{call} failed")


def test_a_follower_gets_the_run_and_no_rows(record: RunRecord, tmp_path: Path) -> None:
    (tmp_path / HISTORY_NAME).write_text('{"step": 4, "train/loss": 3.0}\n')
    follower = InMemoryFollower()
    tracker = Tracker(follower)
    tracker.start(record, tmp_path, resume_after=4)
    tracker.log({"train/loss": 2.0}, 5)
    tracker.log({"train/loss": 1.0}, 6)
    record.status = "completed"
    tracker.finish(record)
    assert follower.calls == ["start", "finish"]
    assert (follower.directory, follower.reached) == (tmp_path, 4)
    assert [one.status for one in follower.records] == ["interrupted", "completed"]
    assert [row["step"] for row in read_history(tmp_path)] == [4, 5, 6]


def test_the_history_is_whole_before_its_follower_ends(record: RunRecord, tmp_path: Path) -> None:
    order: list[str] = []

    class Noting(InMemoryFollower):
        def start(self, record: RunRecord, directory: Path, reached: int) -> None:
            order.append(f"history there: {(directory / HISTORY_NAME).exists()}")

        def finish(self, record: RunRecord) -> None:
            order.append("follower ended")

    with pytest.MonkeyPatch.context() as patch:
        close = Tracker._close
        patch.setattr(Tracker, "_close", lambda self, record: (order.append("history closed"), close(self, record)))
        tracker = Tracker(Noting())
        tracker.start(record, tmp_path, resume_after=None)
        tracker.finish(record)
    assert order == ["history there: True", "history closed", "follower ended"]


def test_a_follower_ends_even_where_rows_are_lost(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tracker: Tracker, record: RunRecord) -> None:
        raise OSError("finish failed")

    follower = InMemoryFollower()
    tracker = Tracker(follower)
    tracker.start(record, tmp_path, resume_after=None)
    close = Tracker._close
    monkeypatch.setattr(Tracker, "_close", lambda self, record: (close(self, record), fail(self, record)))
    with pytest.raises(OSError, match="finish failed"):
        tracker.finish(record)
    assert follower.calls == ["start", "finish"]


def test_a_history_that_cannot_be_opened_has_no_follower(record: RunRecord, tmp_path: Path) -> None:
    (tmp_path / HISTORY_NAME).mkdir()
    follower = InMemoryFollower()
    tracker = Tracker(follower)
    with pytest.raises(RecordError):
        tracker.start(record, tmp_path, resume_after=1)
    assert follower.calls == []
    tracker.finish(record)
    assert follower.calls == ["finish"]


def test_a_follower_that_cannot_start_can_be_finished(record: RunRecord, tmp_path: Path) -> None:
    follower = InMemoryFollower(failing="start")
    tracker = Tracker(follower)
    with pytest.raises(OSError, match="start failed"):
        tracker.start(record, tmp_path, resume_after=None)
    tracker.finish(record)
    assert follower.calls == ["start", "finish"]


def test_history_is_written_also_where_wandb_is_disabled(record: RunRecord, tmp_path: Path) -> None:
    said: list[str] = []
    tracker = make_tracker(TrackingConfig(mode="disabled"), None, said.append)
    tracker.start(record, tmp_path, resume_after=None)
    tracker.log({"train/loss": 2.0}, 1)
    tracker.finish(record)
    assert read_history(tmp_path) == [{"step": 1, "train/loss": 2.0}]
    assert not said
    assert not record.wandb


def test_wandb_follows_where_it_is_not_disabled(shared: WandbAddress, record: RunRecord, tmp_path: Path) -> None:
    said: list[str] = []
    tracker = make_tracker(TrackingConfig(mode="offline"), None, said.append, shared)
    tracker.start(record, tmp_path, resume_after=None)
    tracker.log({"train/loss": 2.0}, 1)
    tracker.finish(record)
    assert [line.partition(",")[0] for line in said] == ["W&B: offline"]
    assert record.wandb.last_step == 1
    assert read_history(tmp_path) == [{"step": 1, "train/loss": 2.0}]
