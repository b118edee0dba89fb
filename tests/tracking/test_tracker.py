"""Rows go to `history.jsonl`, each step once, whatever happens; a follower shows the file elsewhere."""

import math
import signal
import subprocess
import sys

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.records import HISTORY_NAME, RecordError, read_history
from ampsweep.tracking.tracker import Tracker, make_tracker


def write(record, directory, steps, *, resume_after=None):
    """The history of a run whose process before was killed, if there was one: it has no digest."""
    record.history_digest, tracker = None, Tracker()
    tracker.start(record, directory, resume_after=resume_after)
    for step in steps:
        tracker.log({"train/loss": 1 / step}, step)
    tracker.finish(record)
    return tracker


def steps_in(directory, record):
    """The steps of a history that has the record's digest."""
    return [row["step"] for row in read_history(directory, record.history_digest)]


class Follower:
    """Keeps what it is called with, and fails to start if so asked."""

    def __init__(self, *, fails=False):
        self.fails, self.calls = fails, []

    def start(self, record, directory, reached):
        self.calls.append(("start", record.status, record.history_digest is None, reached))
        assert (directory / HISTORY_NAME).exists()
        if self.fails:
            raise OSError("start failed")

    def finish(self, record):
        self.calls.append(("finish", record.status, record.history_digest is None))


def test_a_row_is_on_file_as_strict_json_when_log_returns(record, tmp_path):
    tracker = Tracker()
    tracker.start(record, tmp_path, resume_after=None)
    for step in (1, 2):
        tracker.log({"train/loss": 0.1 + step, "amp/scale": 65536.0}, step)
        assert (tmp_path / HISTORY_NAME).read_text().splitlines()[-1] == (
            f'{{"step": {step}, "train/loss": {0.1 + step}, "amp/scale": 65536.0}}'
        )
    with pytest.raises(AssertionError, match="step 2 after step 2"):
        tracker.log({}, 2)
    tracker.log({"train/loss": math.nan, "train/grad_norm": math.inf, "x": -math.inf}, 3)
    assert (tmp_path / HISTORY_NAME).read_text().splitlines()[-1] == (
        '{"step": 3, "train/loss": "NaN", "train/grad_norm": "Infinity", "x": "-Infinity"}'
    )
    tracker.finish(record)
    row = read_history(tmp_path)[-1]
    assert math.isnan(row["train/loss"])
    assert (row["train/grad_norm"], row["x"]) == (math.inf, -math.inf)
    assert record.history_digest is not None
    tracker.finish(record)
    Tracker().finish(record)


def test_a_resume_keeps_the_rows_there_and_adds_the_others(record, tmp_path):
    write(record, tmp_path, range(1, 11))
    path = tmp_path / HISTORY_NAME
    before, inode = path.read_text(), path.stat().st_ino
    assert write(record, tmp_path, range(7, 9), resume_after=6).reached == 10
    assert path.read_text() == before
    write(record, tmp_path, range(7, 13), resume_after=6)
    assert steps_in(tmp_path, record) == list(range(1, 13))
    assert path.read_text().startswith(before)
    assert path.stat().st_ino == inode
    assert write(record, tmp_path, range(1, 3)).reached == 0, "a run from nothing starts an empty history"
    assert steps_in(tmp_path, record) == [1, 2]


def test_a_torn_last_line_is_cut_atomically_and_a_damaged_one_left(record, tmp_path):
    write(record, tmp_path, range(1, 11))
    path = tmp_path / HISTORY_NAME
    old = path.read_text() + '{"step": 11, "tr'
    path.write_text(old)
    with path.open() as reader:
        assert write(record, tmp_path, range(3, 13), resume_after=2).reached == 10
        assert reader.read() == old, "the old file stays as it was for whoever has it open"
    assert steps_in(tmp_path, record) == list(range(1, 13))
    assert [entry.name for entry in tmp_path.iterdir()] == [HISTORY_NAME]
    damaged = '{"step": 1}\nloss,step\n{"step": 3}\n{"st'
    path.write_text(damaged)
    with pytest.raises(RecordError, match="is damaged: line 2 is not JSON"):
        write(record, tmp_path, range(4, 5), resume_after=3)
    assert path.read_text() == damaged


SCRIPT = """
import os, resource, signal, sys
from pathlib import Path
from types import SimpleNamespace
from ampsweep.tracking.tracker import Tracker
record, fate, unlimited = SimpleNamespace(history_digest=None), sys.argv[2], resource.RLIM_INFINITY
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
history = Tracker()
history.start(record, Path(sys.argv[1]), resume_after=None)
for step in range(1, 31):
    if step == 10 and fate != "kill":
        taken = (Path(sys.argv[1]) / "history.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (taken + 20, unlimited))  # room for a part of a row
    if step == 20 and fate == "full for a while":
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    history.log({"train/loss": 1 / step}, step)
if fate == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
history.finish(record)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of a file's size there")
@pytest.mark.parametrize("fate", ["kill", "full for a while", "full for good"])
def test_rows_survive_a_kill_and_wait_for_room_on_disk(fate, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), fate]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    rows = read_history(tmp_path)
    assert rows == [{"step": step, "train/loss": 1 / step} for step in range(1, len(rows) + 1)]
    if fate == "full for good":
        assert 0 < len(rows) < 30
        assert done.stderr.splitlines()[-1] == (
            f"OSError: [Errno 27] File too large: {30 - len(rows)} rows are lost: '{tmp_path / HISTORY_NAME}'"
        )
    else:
        assert (len(rows), done.returncode) == (30, -signal.SIGKILL if fate == "kill" else 0)


def test_a_follower_gets_the_run_and_no_rows(record, tmp_path):
    (tmp_path / HISTORY_NAME).write_text('{"step": 4, "train/loss": 3.0}\n')
    tracker = Tracker(follower := Follower())
    tracker.start(record, tmp_path, resume_after=4)
    tracker.log({"train/loss": 2.0}, 5)
    record.status = "completed"
    tracker.finish(record)
    assert follower.calls == [("start", "interrupted", True, 4), ("finish", "completed", False)], "a closed history"
    assert steps_in(tmp_path, record) == [4, 5]


def test_a_follower_ends_even_where_rows_are_lost_or_it_failed_to_start(record, tmp_path, monkeypatch):
    unstarted = Tracker(follower := Follower(fails=True))
    with pytest.raises(OSError, match="start failed"):
        unstarted.start(record, tmp_path, resume_after=None)
    unstarted.finish(record)
    assert [name for name, *_ in follower.calls] == ["start", "finish"]
    (tmp_path / "run" / HISTORY_NAME).mkdir(parents=True)
    unopened = Tracker(follower := Follower())
    with pytest.raises(RecordError):
        unopened.start(record, tmp_path / "run", resume_after=1)
    assert follower.calls == [], "without a history there is nothing to follow"
    unopened.finish(record)

    def write(tracker):
        raise OSError(28, "no room")

    tracker = Tracker(follower := Follower())
    tracker.start(record, tmp_path, resume_after=None)
    monkeypatch.setattr(Tracker, "_write", write)
    with pytest.raises(OSError, match="no room"):
        tracker.finish(record)
    assert [name for name, *_ in follower.calls] == ["start", "finish"]


@pytest.mark.parametrize(("mode", "variable"), [("disabled", "online"), ("auto", "disabled")])
def test_a_run_has_a_history_where_wandb_is_disabled(mode, variable, record, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", variable)
    tracker = make_tracker(TrackingConfig(mode=mode), None, pytest.fail, None, pytest.fail)
    tracker.start(record, tmp_path, resume_after=None)
    tracker.log({"train/loss": 2.0}, 1)
    tracker.finish(record)
    assert read_history(tmp_path) == [{"step": 1, "train/loss": 2.0}]
    assert not record.wandb
    assert [path.name for path in tmp_path.iterdir()] == [HISTORY_NAME]
