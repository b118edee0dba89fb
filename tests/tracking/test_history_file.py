"""`history.jsonl` has each logged step once, whatever happens to the process."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from identities import identity

from ampsweep.record import RecordError, RunRecord, read_history
from ampsweep.tracking.tracker import Tracker


def write(directory: Path, steps: range, *, resume_after: int | None = None) -> Tracker:
    """The history of a run whose process before was killed, if there was one: it has no digest."""
    record, history = made(), Tracker()
    history.start(record, directory, resume_after=resume_after)
    for step in steps:
        history.log({"train/loss": 1 / step}, step)
    history.finish(record)
    return history


def made() -> RunRecord:
    return RunRecord(run_id="a", arm="fp32", pair_key="k", config_hash="c", identity=identity(), config={})


def steps_in(directory: Path) -> list[int]:
    return [row["step"] for row in read_history(directory)]


def test_a_row_is_on_file_when_log_returns(record: RunRecord, tmp_path: Path) -> None:
    history = Tracker()
    history.start(record, tmp_path, resume_after=None)
    for step in (1, 2):
        history.log({"train/loss": 0.1 + step, "amp/scale": 65536.0}, step)
        assert (tmp_path / "history.jsonl").read_text().splitlines()[-1] == (
            f'{{"step": {step}, "train/loss": {0.1 + step}, "amp/scale": 65536.0}}'
        )
    history.finish(record)


def test_rows_survive_kill_9(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from ampsweep.tracking.tracker import Tracker
RECORD = SimpleNamespace(history_digest=None)
history = Tracker()
history.start(RECORD, Path(sys.argv[1]), resume_after=None)
for step in range(1, 101):
    history.log({"train/loss": 1 / step}, step)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_history(tmp_path) == [{"step": step, "train/loss": 1 / step} for step in range(1, 101)]


def test_non_finite_values_are_strict_json_and_come_back(record: RunRecord, tmp_path: Path) -> None:
    history = Tracker()
    history.start(record, tmp_path, resume_after=None)
    history.log({"train/loss": math.nan, "train/grad_norm": math.inf, "x": -math.inf}, 1)
    history.finish(record)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads((tmp_path / "history.jsonl").read_text(), parse_constant=refuse)
    (row,) = read_history(tmp_path)
    assert math.isnan(row["train/loss"])
    assert (row["train/grad_norm"], row["x"]) == (math.inf, -math.inf)


def test_a_resume_keeps_the_rows_there_and_adds_the_others(tmp_path: Path) -> None:
    """As W&B does, which has them too; a second training of a step measures other times."""
    write(tmp_path, range(1, 11))
    path = tmp_path / "history.jsonl"
    before, inode = path.read_text(), path.stat().st_ino
    assert write(tmp_path, range(7, 9), resume_after=6).reached == 10
    assert path.read_text() == before
    write(tmp_path, range(7, 13), resume_after=6)
    assert steps_in(tmp_path) == list(range(1, 13))
    assert path.read_text().startswith(before)
    assert path.stat().st_ino == inode


def test_a_torn_last_line_is_cut(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    path = tmp_path / "history.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 4, "train/lo')
    assert write(tmp_path, range(4, 6), resume_after=3).reached == 3
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5]


def test_the_cut_is_atomic(tmp_path: Path) -> None:
    """Who has the file open, or looks at it after a crash in between, sees the old rows or the new ones."""
    write(tmp_path, range(1, 11))
    path = tmp_path / "history.jsonl"
    old = path.read_text() + '{"step": 11, "tr'
    path.write_text(old)
    with path.open() as reader:
        write(tmp_path, range(0), resume_after=2)
        assert reader.read() == old
    assert steps_in(tmp_path) == list(range(1, 11))
    assert [entry.name for entry in tmp_path.iterdir()] == ["history.jsonl"]


def test_a_run_from_nothing_starts_an_empty_history(tmp_path: Path) -> None:
    write(tmp_path, range(1, 6))
    assert write(tmp_path, range(1, 3)).reached == 0
    assert steps_in(tmp_path) == [1, 2]


FULL = """
import resource, signal, sys
from pathlib import Path
from types import SimpleNamespace
from ampsweep.tracking.tracker import Tracker
RECORD = SimpleNamespace(history_digest=None)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
history = Tracker()
history.start(RECORD, Path(sys.argv[1]), resume_after=None)
for step in range(1, 31):
    if step == 10:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
    if step == 20 and sys.argv[2] == "for a while":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    history.log({"train/loss": 1 / step}, step)
history.finish(RECORD)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of a file's size there")
def test_rows_wait_for_room_on_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path), "for a while"], check=False)
    assert done.returncode == 0
    assert read_history(tmp_path) == [{"step": step, "train/loss": 1 / step} for step in range(1, 31)]


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of a file's size there")
def test_rows_that_found_no_room_are_counted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), "for good"], check=False, stderr=subprocess.PIPE, text=True
    )
    num_rows = len(read_history(tmp_path))
    assert 0 < num_rows < 30
    assert done.stderr.splitlines()[-1] == (
        f"OSError: [Errno 27] File too large: {30 - num_rows} rows are lost: '{tmp_path / 'history.jsonl'}'"
    )


def test_a_damaged_history_is_not_gone_on_with(tmp_path: Path) -> None:
    damaged = '{"step": 1}\nloss,step\n{"step": 3}\n{"st'
    (tmp_path / "history.jsonl").write_text(damaged)
    with pytest.raises(RecordError, match="is damaged: line 2 is not JSON"):
        write(tmp_path, range(4, 5), resume_after=3)
    assert (tmp_path / "history.jsonl").read_text() == damaged


def test_steps_only_grow(record: RunRecord, tmp_path: Path) -> None:
    history = Tracker()
    history.start(record, tmp_path, resume_after=None)
    history.log({}, 2)
    with pytest.raises(AssertionError, match="step 2 after step 2"):
        history.log({}, 2)
    history.finish(record)
    history.finish(record)
    Tracker().finish(record)
