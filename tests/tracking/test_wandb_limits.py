"""Every wait for W&B ends: a wandb-core, or a W&B process, that says nothing more is killed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import psutil
import pytest
from served import Wandb, wandb_cores
from wandb_server import Fault, WandbServer

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord, history_line, read_history
from ampsweep.tracking.tracker import TrackingCheck, make_tracker
from ampsweep.tracking.wandb import copy, process
from ampsweep.tracking.wandb.copy import copy_runs
from ampsweep.tracking.wandb.follower import SYNC_LATER
from ampsweep.tracking.wandb.library import CORE_ENDED, WandbError
from ampsweep.tracking.wandb.process import WandbProcess
from ampsweep.tracking.wandb.selection import Selection
from ampsweep.tracking.wandb.sync_run import complete_runs


@pytest.fixture(autouse=True)
def logged_in(online: Wandb, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT")
    yield
    assert wandb_cores() == []


def stop(one: psutil.Process) -> None:
    """It goes on living, and does nothing any more."""
    os.kill(one.pid, signal.SIGSTOP)


def on_core(after: str, server: WandbServer, number: signal.Signals) -> None:
    """Send the wandb-cores of this process a signal once the server has been asked that."""
    server.recorded.requests.clear()

    def watch() -> None:
        while not any(request.operation == after for request in list(server.recorded.requests)):
            time.sleep(0.001)
        for core in wandb_cores():
            core.send_signal(number)

    Thread(target=watch, daemon=True).start()


@pytest.fixture
def ended(record: RunRecord, tmp_path: Path) -> Path:
    record.status = "completed"
    record.write(tmp_path)
    (tmp_path / "history.jsonl").write_text(history_line({"step": 1, "train/loss": 1.0}))
    return tmp_path


@pytest.mark.parametrize(
    ("number", "sentence"), [(signal.SIGSTOP, "not done in 3 s"), (signal.SIGKILL, None)], ids=["stopped", "killed"]
)
def test_a_sync_gives_a_lost_wandb_core_up(
    number: signal.Signals, sentence: str | None, online: Wandb, ended: Path
) -> None:
    on_core("UpsertBucket", online.server, number)
    with pytest.raises(WandbError) as error:
        online.address.call(complete_runs, [(ended, None)], 1.0, silence_s=3.0)
    assert sentence is None or str(error.value) == sentence
    online.address.call(complete_runs, [(ended, None)], 1.0, silence_s=30.0)


def test_a_report_gives_a_silent_wandb_core_up(online: Wandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "_LISTING_S", 3.0)
    with online.server.failing(Fault(on="Runs", status=200, delay_s=20.0)), pytest.raises(WandbError, match="not done"):
        copy_runs(Selection("team", "p"), tmp_path / "copy", lambda done, all: None)


def hang(caller: object) -> None:
    time.sleep(60)


def vanish(caller: object) -> None:
    os._exit(3)


def test_a_task_that_vanishes_or_hangs_is_an_error(online: Wandb) -> None:
    with pytest.raises(WandbError, match="not done in 0 s"):
        online.address.call(hang, silence_s=0.2)
    with pytest.raises(WandbError, match=f"^{CORE_ENDED}$"):
        online.address.call(vanish, silence_s=30.0)


@pytest.mark.parametrize("who", ["wandb-core", "W&B process"])
def test_a_training_goes_on_beside_one_that_is_silent(
    who: str, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with WandbProcess() as served:
        tracker = make_tracker(TrackingConfig(mode="online", project="p"), "g", said.append, served.address)
        tracker.start(record, tmp_path, resume_after=None)
        deadline = time.monotonic() + 30
        while not wandb_cores():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for one in wandb_cores() if who == "wandb-core" else [psutil.Process(served.address.pid)]:
            stop(one)
        for step in range(1, 2000):
            tracker.log({"train/loss": 1 / step, "train/grad_norm": 1.0}, step)
        record.status = "completed"
        began = time.monotonic()
        tracker.finish(record)
        assert time.monotonic() - began < 15
    if who == "wandb-core":  # its rows are in a process that goes on, of which the W&B process is only the root
        assert said[1:] == [f"W&B: lost (it had not taken all of the run 5 s after its end); {SYNC_LATER}"]
    assert len(read_history(tmp_path)) == 1999


def test_a_silent_process_refuses_nothing(online: Wandb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_ANSWER_S", 1.0)
    with WandbProcess() as served:
        stop(psutil.Process(served.address.pid))
        TrackingCheck(TrackingConfig(mode="online", project="p"), served.address).require()
