"""The training goes on, and nothing of W&B stays behind, whatever becomes of its server or its own processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import psutil
import pytest
from served import Wandb, wandb_cores
from wandb_server import Fault, WandbServer

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord, read_history
from ampsweep.record.parts import MemoryUse, ModeProof
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb.follower import SYNC_LATER
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess

Event = Callable[[], object]


class Training:
    """Tracks 20 rows; what it was held up for, and what the user was told."""

    def __init__(self, record: RunRecord, directory: Path, address: WandbAddress | None) -> None:
        self.record, self.directory, self.address = record, directory, address
        self.said: list[str] = []
        self.start_s = self.finish_s = 0.0

    def run(self, events: dict[int, Event] | None = None, seconds: float = 2.0) -> None:
        """``events`` happen before a row; 0 is before the start, 21 before the end."""
        events = events or {}
        events.get(0, int)()
        tracker = make_tracker(TrackingConfig(mode="online", project="p"), "g", self.said.append, self.address)
        began = time.perf_counter()
        tracker.start(self.record, self.directory, resume_after=None)
        self.start_s = time.perf_counter() - began
        for step in range(1, 21):
            events.get(step, int)()
            tracker.log({"train/loss": 1 / step}, step)
            time.sleep(seconds / 20)
        events.get(21, int)()
        self.record.status = "completed"
        self.record.memory, self.record.proof = MemoryUse(peak={"parameters": 4096}), ModeProof(outputs={"bfloat16": 9})
        began = time.perf_counter()
        tracker.finish(self.record)
        self.finish_s = time.perf_counter() - began

    @property
    def rows(self) -> list[dict[str, float]]:
        return read_history(self.directory)


@pytest.fixture
def training(record: RunRecord, tmp_path: Path, online: Wandb) -> Iterator[Training]:
    yield Training(record, tmp_path, online.address)
    deadline = time.monotonic() + 5  # one that was killed may still be listed for a moment
    while wandb_cores() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert wandb_cores() == []


def kill_core() -> None:
    for core in wandb_cores():
        core.kill()


def test_a_healthy_server_has_every_row_at_the_end(training: Training, online: Wandb) -> None:
    training.run(seconds=0.2)
    run, noted = online.run(training.record), training.record.wandb
    assert run.rows == training.rows
    assert (run.state, run.summary["status"], run.attributes["groupName"]) == ("finished", "completed", "g")
    assert (noted.url, noted.last_step) == (f"{online.server.url}/team/p/runs/{run.name}", 20)


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("refuses", "no connection to the server: Connection refused"),
        ("is silent", "the server does not answer"),
        ("resets", "no connection to the server: Remote end closed connection without response"),
        ("fails", "the server answered 500 Internal Server Error"),
        ("fails at runs only", "it had not taken all of the run 5 s after its end"),
    ],
)
def test_a_bad_server_costs_a_run_a_second(
    kind: str, seen: str, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {
        "is silent": Fault(status=200, delay_s=30.0),
        "resets": Fault(status=0),
        "fails": Fault(status=500),
        "fails at runs only": Fault(on="UpsertBucket", status=500),
    }
    with WandbServer() as server, monkeypatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        server.faults += [faults[kind]] if kind in faults else []
        if kind == "refuses":
            server.refuse()
        with WandbProcess() as process:
            training = Training(record, tmp_path, process.address)
            training.run(seconds=0.2)
            first_s = training.start_s + training.finish_s
            training.directory = tmp_path / "second"
            training.directory.mkdir()
            training.record.run_id = "run0124"
            training.run(seconds=0.2)
            second_s = training.start_s + training.finish_s
        if kind == "refuses":
            server.accept()
    most_s = 1.0 if "5 s" not in seen else 5.0
    assert max(first_s, second_s) < most_s + 2.5, "on a busy machine, W&B is yet being imported"
    lost = f"W&B: lost ({seen}); {SYNC_LATER}"
    assert training.said == ["W&B: online, project p", lost] * 2
    assert (record.wandb.mode, record.wandb.error) == ("offline", seen)
    assert len(training.rows) == 20


@pytest.mark.slow
def test_a_server_that_comes_back_gets_what_it_missed(training: Training, online: Wandb) -> None:
    """It is away as the run starts, and again later on."""
    server = online.server
    training.run({0: server.refuse, 4: server.accept, 14: server.refuse, 16: server.accept})
    run = online.run(training.record)
    assert run.rows == training.rows
    assert run.state == "finished"
    assert training.record.wandb.error is None


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 10], ids=["as the run begins", "in the middle"])
def test_a_key_that_becomes_wrong_stops_no_training(
    step: int, training: Training, online: Wandb, impatient: WandbAddress
) -> None:
    training.address = impatient
    training.run({step: lambda: setattr(online.server, "key", "9" * 40)})
    assert len(training.rows) == 20
    assert training.record.status == "completed"
    assert training.record.wandb.error
    assert training.said[1:] == [f"W&B: lost ({training.record.wandb.error}); {SYNC_LATER}"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(on="file_stream", status=500), "it had not taken all of the run 5 s after its end"),
        (Fault(status=429), "the server answered 429 Too Many Requests"),
        (Fault(status=0), "no connection to the server: Remote end closed connection without response"),
        (Fault(status=500, delay_s=5.0), "the server does not answer"),
        (Fault(on="CreateRunFiles", status=500), "it had not taken all of the run 5 s after its end"),
        (Fault(on="CreateRunFiles", status=500, delay_s=5.0), "it had not taken all of the run 5 s after its end"),
    ],
    ids=["rows 500", "429", "dropped", "silent", "addresses 500", "addresses silent"],
)
def test_a_server_that_fails_at_the_end_is_given_up(
    fault: Fault, why: str, training: Training, online: Wandb, impatient: WandbAddress
) -> None:
    training.address = impatient
    training.run({21: lambda: online.server.faults.append(fault)}, seconds=0.2)
    assert training.finish_s < 6.5
    assert training.record.wandb.error == why
    assert training.said[1:] == [f"W&B: lost ({training.record.wandb.error}); {SYNC_LATER}"]
    assert len(training.rows) == 20


@pytest.mark.slow
def test_a_server_that_is_slow_is_waited_for(training: Training, online: Wandb, impatient: WandbAddress) -> None:
    """W&B asks it one question after the other at the end: together longer than a silent one is waited for."""
    training.address = impatient
    with online.server.failing(Fault(status=200, delay_s=0.1)):
        training.run(seconds=1.0)
    assert training.finish_s > 0.6
    run = online.run(training.record)
    assert (run.rows, run.state) == (training.rows, "finished")
    assert training.record.wandb.error is None


def test_an_answer_that_is_lost_doubles_no_row(training: Training, online: Wandb) -> None:
    lost = Fault(on="file_stream", status=0, is_heard=True, times=1)
    training.run({2: lambda: online.server.faults.append(lost)}, seconds=0.2)
    run = online.run(training.record)
    assert lost.times == 0
    assert run.rows == training.rows
    assert run.state == "finished"


@pytest.mark.slow
def test_a_finish_waits_as_long_as_the_user_says(training: Training, online: Wandb) -> None:
    def be_away() -> None:
        online.server.refuse()
        Timer(2.0, online.server.accept).start()

    training.run({21: be_away}, seconds=0.2)
    run = online.run(training.record)
    assert run.rows == training.rows
    assert run.state == "finished"


KILLED = """
import sys, time
from pathlib import Path
from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.tracking.tracker import make_tracker
directory = Path(sys.argv[1])
tracker = make_tracker(TrackingConfig(mode="online", project="p"), None, lambda line: None)
tracker.start(RunRecord.read(directory), directory, resume_after=None)
for step in range(1, 1000):
    tracker.log({"train/loss": 1 / step}, step)
    if step == 5:
        print(flush=True)
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_nothing_outlives_a_killed_training(record: RunRecord, tmp_path: Path, online: Wandb) -> None:
    record.write(tmp_path)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while not any(run.name == record.run_id and run.rows for run in online.server.runs):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert {"wandb-core"} < {one.name() for one in family}
        process.kill()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    run = online.run(record)
    assert run.rows == read_history(tmp_path)
    assert (run.state, run.summary["status"]) == ("failed", "interrupted")


def test_a_training_does_not_use_the_wandb_core_of_its_parent(
    record: RunRecord, tmp_path: Path, online: Wandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would under `wandb agent`, whose runs must not end with it."""
    monkeypatch.setenv("WANDB_SERVICE", f"3-{os.getpid()}-unix-/nowhere")
    with WandbProcess() as process:
        Training(record, tmp_path, process.address).run(seconds=0.2)
    assert online.run(record).rows == read_history(tmp_path)
