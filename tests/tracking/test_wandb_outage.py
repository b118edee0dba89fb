"""The training goes on, and every wait ends, whatever becomes of W&B's server or its processes."""

import os
import re
import signal
import time
from threading import Thread, Timer

import pytest
from served import train, wait_until, wandb_cores, wandb_process
from wandb_server import Fault

from ampsweep.config.schema import TrackingConfig
from ampsweep.records import history_line, read_history
from ampsweep.tracking.tracker import TrackingCheck
from ampsweep.tracking.wandb import process
from ampsweep.tracking.wandb.follower import SYNC_LATER
from ampsweep.tracking.wandb.library import CORE_ENDED, WandbError

nightly = pytest.mark.nightly
SLOW_END = "it had not taken all of the run 5 s after its end"


@pytest.fixture(autouse=True)
def _no_core_is_left():
    yield
    wait_until(lambda: wandb_cores() == [], 5)  # a killed process may still be listed for a moment


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (None, "no connection to the server: Connection refused"),
        pytest.param(Fault(status=200, delay_s=30.0), "the server does not answer", marks=nightly),
        pytest.param(Fault(on="UpsertBucket", status=500), SLOW_END, marks=nightly),
    ],
    ids=["refuses", "is silent", "fails at runs only"],
)
def test_a_bad_server_costs_a_run_a_second(fault, seen, record, tmp_path, online, impatient):
    impatient.call(id, silence_s=60.0)  # it has imported wandb
    with online.server.away() if fault is None else online.server.failing(fault):
        tracked = train(record, tmp_path, impatient, mode="online")
    assert tracked.start_s + tracked.finish_s < 5.0 + (5 if seen == SLOW_END else 0), "1 s on a quiet machine"
    assert tracked.said == ["W&B: online, project p", f"W&B: lost ({seen}); {SYNC_LATER}"]
    assert (record.wandb.mode, record.wandb.error) == ("offline", seen)
    assert len(read_history(tmp_path)) == 20


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(status=429), "the server answered 429 Too Many Requests"),
        pytest.param(Fault(on="file_stream", status=500), SLOW_END, marks=nightly),
        pytest.param(Fault(status=0), "no connection to the server: Remote end closed connection", marks=nightly),
        pytest.param("another key", "W&B: the server .* refuses the API key: user is not logged in", marks=nightly),
    ],
    ids=["429", "rows 500", "dropped", "another key"],
)
def test_a_server_that_fails_at_the_end_is_given_up(fault, why, record, tmp_path, online, impatient):
    def begin_to_fail():
        if isinstance(fault, Fault):
            online.server.faults.append(fault)
        else:
            online.server.key = "9" * 40

    tracked = train(record, tmp_path, impatient, events={-1: begin_to_fail}, mode="online")
    assert tracked.finish_s < 6.5
    assert re.match(why, record.wandb.error)
    assert tracked.said[1:] == [f"W&B: lost ({record.wandb.error}); {SYNC_LATER}"]
    assert len(read_history(tmp_path)) == 20


def test_an_answer_that_is_lost_doubles_no_row(record, tmp_path, online):
    lost = Fault(on="file_stream", status=0, is_heard=True, times=1)
    train(record, tmp_path, online.address, events={2: lambda: online.server.faults.append(lost)}, mode="online")
    run = online.run(record)
    assert lost.times == 0
    assert (run.rows, run.state) == (read_history(tmp_path), "finished")


@nightly
def test_a_slow_server_is_waited_for(record, tmp_path, online, impatient):
    """W&B asks it one question after the other at the end: together longer than a silent one is waited for."""
    with online.server.failing(Fault(status=200, delay_s=0.1)):
        tracked = train(record, tmp_path, impatient, mode="online")
    assert tracked.finish_s > 0.6
    run = online.run(record)
    assert (run.rows, run.state, record.wandb.error) == (read_history(tmp_path), "finished", None)


@nightly
def test_a_finish_waits_as_long_as_the_user_says(record, tmp_path, online):
    def be_away():
        online.server.refuse()
        Timer(2.0, online.server.accept).start()

    train(record, tmp_path, online.address, events={-1: be_away}, mode="online")
    run = online.run(record)
    assert (run.rows, run.state) == (read_history(tmp_path), "finished")


def hang_or_vanish(caller, seconds):
    time.sleep(seconds)
    os._exit(3)


def test_a_task_that_hangs_or_vanishes_is_an_error(online):
    with pytest.raises(WandbError, match="not done in 0 s"):
        online.address.call(hang_or_vanish, 60, silence_s=0.2)
    with pytest.raises(WandbError, match=f"^{CORE_ENDED}$"):
        online.address.call(hang_or_vanish, 0, silence_s=30.0)


def test_a_silent_process_refuses_nothing(tmp_path, monkeypatch):
    with wandb_process(tmp_path) as address:
        monkeypatch.setattr(process, "_ANSWER_S", 0.3)
        os.kill(address.pid, signal.SIGSTOP)
        TrackingCheck(TrackingConfig(mode="online", project="p"), address).require()


@nightly
def test_a_training_goes_on_beside_a_silent_wandb_core(record, tmp_path, online, impatient):
    def stop():
        for core in wait_until(wandb_cores):
            os.kill(core.pid, signal.SIGSTOP)

    tracked = train(record, tmp_path, impatient, range(1, 2000), events={1: stop}, mode="online")
    assert tracked.finish_s < 15
    assert tracked.said[1:] == [f"W&B: lost ({SLOW_END}); {SYNC_LATER}"]
    assert len(read_history(tmp_path)) == 1999


@nightly
@pytest.mark.parametrize(("number", "sentence"), [(signal.SIGSTOP, "not done in 3 s"), (signal.SIGKILL, "")])
def test_a_sync_gives_a_lost_wandb_core_up(number, sentence, record, tmp_path, online):
    record.status = "completed"
    record.config["tracking"] |= {"project": "p"}
    record.write(tmp_path)
    (tmp_path / "history.jsonl").write_text(history_line({"step": 1, "train/loss": 1.0}))
    online.server.recorded.requests.clear()

    def watch():
        wait_until(lambda: "UpsertBucket" in [request.operation for request in list(online.server.recorded.requests)])
        for core in wandb_cores():
            core.send_signal(number)

    watcher = Thread(target=watch)
    watcher.start()
    assert online.sync(tmp_path, silence_s=3.0).startswith(f"WandbError: {sentence}")
    watcher.join()
    assert "num_sent" in online.sync(tmp_path, silence_s=30.0)
