"""Every wait for W&B ends: a wandb-core, or a W&B process, that says nothing more is killed."""

import gc
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from served import Wandb
from wandb_server import WandbServer

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord, history_line, read_history
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb import api, outage, process, sync_run
from ampsweep.tracking.wandb.copy import copy_runs
from ampsweep.tracking.wandb.core import CORE_SILENT, CoreLimit, Sending, end_wandb
from ampsweep.tracking.wandb.library import CORE_ENDED, lost_errors
from ampsweep.tracking.wandb.outage import Patience
from ampsweep.tracking.wandb.process import WandbProcess
from ampsweep.tracking.wandb.process_messages import SYNC_LATER
from ampsweep.tracking.wandb.selection import Selection

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture(autouse=True)
def logged_in(online: Wandb) -> Iterator[None]:
    yield
    end_wandb()
    assert cores() == []
    gc.collect()  # of wandb, which has never waited for what was killed here


def cores() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [one for one in children if one.name().startswith("wandb-core") and one.status() != psutil.STATUS_ZOMBIE]


def stop(one: psutil.Process) -> None:
    """It goes on living, and does nothing any more."""
    os.kill(one.pid, signal.SIGSTOP)


def start_core() -> psutil.Process:
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True)).ensure_service()
    (core,) = cores()
    return core


@pytest.mark.parametrize("fault", ["stopped", "deaf"])
def test_a_wandb_core_that_does_not_end_is_killed(fault: str) -> None:
    from wandb.sdk import wandb_setup

    core = start_core()
    if fault == "stopped":
        stop(core)
    else:  # the message that it is to end never arrives
        connection = wandb_setup.singleton().ensure_service()._client._writer.get_extra_info("socket")
        with socket.socket(fileno=os.dup(connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)
    began = time.monotonic()
    end_wandb(within_s=0.5)
    assert time.monotonic() - began < 10
    assert not core.is_running()


def test_what_waits_for_a_silent_wandb_core_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    core = start_core()
    stop(core)
    with pytest.raises(OSError, match="does not answer") as error, CoreLimit(0.5):
        api.remote_run("team/p/nothing", with_steps=False)
    assert isinstance(error.value, lost_errors())


def test_what_asks_a_wandb_core_that_is_gone_gets_a_sentence(online: Wandb, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    ask = wandb.Api

    def killing(**settings: int) -> wandb.Api:
        (core,) = cores()
        core.kill()
        core.wait(10)
        return ask(**settings)

    monkeypatch.setattr(wandb, "Api", killing)
    with pytest.raises(api.WandbError, match=f"^{CORE_ENDED}$"), api.wandb_server():
        raise AssertionError("nobody is logged in")


def test_a_limit_counts_again_after_each_move() -> None:
    core = start_core()
    with CoreLimit(0.5) as limit:
        for _ in range(8):
            time.sleep(0.1)
            limit.moved()
    assert core.is_running()


def stop_soon(after: str, server: WandbServer) -> None:
    """Stop the wandb-core of this process once the server has been asked that."""

    def watch() -> None:
        while not any(request.operation == after for request in list(server.recorded.requests)):
            time.sleep(0.001)
        for core in cores():
            stop(core)

    Thread(target=watch, daemon=True).start()


def test_a_sync_gives_a_silent_wandb_core_up(
    online: Wandb, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"_OPENING_S": 2.0, "COMMAND_PATIENCE": Patience()}.items():
        monkeypatch.setattr(sync_run, name, seconds)
    record.status = "completed"
    record.write(tmp_path)
    (tmp_path / "history.jsonl").write_text(history_line({"step": 1, "train/loss": 1.0}))
    online.server.recorded.requests.clear()
    stop_soon("UpsertBucket", online.server)
    with pytest.raises(api.WandbError, match="does not answer"), api.wandb_server():
        sync_run.complete(record, tmp_path, group=None)


@pytest.mark.parametrize("wakes", ["as the run ends", "a moment later"])
def test_a_run_that_ends_after_all_is_not_given_up(
    wakes: str, online: Wandb, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    finish, has_finished, first = wandb.Run.finish, Event(), []

    def finishing(run: wandb.Run, exit_code: int) -> None:
        finish(run, exit_code=exit_code)
        first.extend(cores())
        has_finished.set()
        if wakes == "as the run ends":
            psutil.wait_procs(first, timeout=30)

    def seeming_stuck(run: wandb.Run) -> tuple[Sending, ...]:
        has_finished.wait(30)
        if wakes == "a moment later":
            time.sleep(0.5)
        return (Sending("a file", "", trouble="the server answers with errors"),)

    monkeypatch.setattr(wandb.Run, "finish", finishing)
    monkeypatch.setattr(outage, "sendings", seeming_stuck)
    monkeypatch.setattr(sync_run, "COMMAND_PATIENCE", Patience(errors_s=0.0))
    record.status = "completed"
    record.write(tmp_path)
    (tmp_path / "history.jsonl").write_text(history_line({"step": 1, "train/loss": 1.0}))
    with api.wandb_server():
        assert sync_run.complete(record, tmp_path, group=None).num_sent == 1
        assert (cores() == first) == (wakes == "a moment later")


def test_a_report_gives_a_silent_wandb_core_up(online: Wandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, seconds in {"ASK_S": 2, "LISTING_S": 2, "_SILENT_S": 5}.items():
        monkeypatch.setattr(api, limit, seconds)  # of all: on a slow machine it stops only when runs are listed
    online.server.recorded.requests.clear()
    stop_soon("Viewer", online.server)
    with pytest.raises(api.WandbError, match="does not answer"):
        copy_runs(Selection("team", "p"), tmp_path / "copy", lambda done, all: None)


@pytest.mark.parametrize("who", ["wandb-core", "W&B process"])
def test_a_training_goes_on_beside_one_that_is_silent(
    who: str, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_FINISH_S", 2.0 if who == "W&B process" else 30.0)
    said: list[str] = []
    with WandbProcess() as served:
        tracker = make_tracker(TrackingConfig(mode="online", project="p"), "g", said.append, served.address)
        tracker.start(record, tmp_path, resume_after=None)
        deadline = time.monotonic() + 30
        while record.wandb.url is None and not cores():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for one in cores() if who == "wandb-core" else [psutil.Process(served.address.pid)]:
            stop(one)
        for step in range(1, 2000):
            tracker.log({"train/loss": 1 / step, "train/grad_norm": 1.0}, step)
        record.status = "completed"
        began = time.monotonic()
        tracker.finish(record)
        assert time.monotonic() - began < 15
    why = CORE_SILENT if who == "wandb-core" else "its process does not answer"
    assert said[1:] == [f"W&B: lost ({why}); {SYNC_LATER}"]
    assert len(read_history(tmp_path)) == 1999


def test_a_silent_process_is_left_for_another(
    online: Wandb, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WandbProcess() as served:
        stop(psutil.Process(served.address.pid))
        monkeypatch.setattr(process, "_ANSWER_S", 1.0)
        address = served.address
        with pytest.raises((OSError, EOFError)):
            address.check(TrackingConfig(mode="online", project="p"))
        monkeypatch.undo()
