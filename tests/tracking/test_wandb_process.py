"""A run is the same in W&B when a process of its own tracks it, whatever becomes of either process."""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from served import wandb_cores
from wandb_file import WandbFile

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord, read_history
from ampsweep.socket_folder import socket_folder
from ampsweep.tracking.tracker import Tracker, TrackingCheck, make_tracker
from ampsweep.tracking.wandb.follower import SYNC_LATER
from ampsweep.tracking.wandb.process import FAMILY, KEY_BYTES, WandbAddress, WandbProcess

OFFLINE = TrackingConfig(mode="offline")


@pytest.fixture
def process() -> Iterator[WandbProcess]:
    with WandbProcess() as process:
        yield process


@pytest.fixture
def address(process: WandbProcess) -> WandbAddress:
    return process.address


def track(tracker: Tracker, record: RunRecord, directory: Path, steps: range) -> None:
    tracker.start(record, directory, resume_after=steps.start - 1 or None)
    for step in steps:
        tracker.log({"train/loss": 1 / step}, step)
    record.status, record.summary = "completed", {"val/loss": 0.5}
    tracker.finish(record)


def wandb_process() -> psutil.Process:
    (found,) = wandb_processes()
    return found


def wandb_processes() -> list[psutil.Process]:
    """The W&B processes that this one has started, the only ones that a test may kill."""
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.Error):
            if one.status() != psutil.STATUS_ZOMBIE and "tracking.wandb.service" in " ".join(one.cmdline()):
                found.append(one)
    return found


def test_wandb_gets_what_it_gets_from_the_training_process(
    address: WandbAddress, record: RunRecord, tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    files = []
    for name, where in (("there", address), ("here", None)):
        own, directory, said = deepcopy(record), tmp_path / name, []
        directory.mkdir()
        tracker = make_tracker(OFFLINE, "multirun-7", said.append, where)
        track(tracker, own, directory, range(1, 8))
        (line,) = said
        assert line.startswith("W&B: offline, as tracking.mode says;")
        assert own.wandb.last_step == 7
        files.append(read_wandb(directory / own.wandb.directory))
    there, here = files
    assert there.history == here.history == read_history(tmp_path / "there")
    assert (there.config, there.metrics, there.exit_code) == (here.config, here.metrics, here.exit_code)
    assert there.summary["val/loss"] == 0.5
    assert (there.run.run_id, there.run.run_group, there.run.job_type) == ("run0123", "multirun-7", "amp_bf16")


def test_one_process_tracks_run_after_run(
    record: RunRecord, tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    with WandbProcess() as process:
        for number in range(3):
            own, directory = deepcopy(record), tmp_path / str(number)
            own.run_id = f"run{number}"
            directory.mkdir()
            track(make_tracker(OFFLINE, None, lambda line: None, process.address), own, directory, range(1, 4))
            assert read_wandb(directory / own.wandb.directory).history == read_history(directory)
            assert wandb_cores() == []


def test_numbers_that_are_none_arrive(
    address: WandbAddress, record: RunRecord, tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    tracker = make_tracker(OFFLINE, None, lambda line: None, address)
    tracker.start(record, tmp_path, resume_after=None)
    tracker.log({"train/loss": math.nan, "train/grad_norm": math.inf}, 1)
    tracker.finish(record)
    (row,) = read_wandb(tmp_path / record.wandb.directory).history
    assert math.isnan(row["train/loss"])
    assert row["train/grad_norm"] == math.inf


def test_a_resumed_run_sends_no_step_twice(
    address: WandbAddress, record: RunRecord, tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    def silent(line: str) -> None:
        pass

    track(make_tracker(OFFLINE, None, silent, address), record, tmp_path, range(1, 6))
    first = tmp_path / record.wandb.directory
    track(make_tracker(OFFLINE, None, silent, address), record, tmp_path, range(4, 9))
    second = tmp_path / record.wandb.directory
    assert [row["step"] for row in read_history(tmp_path)] == list(range(1, 9))
    steps = [[row["step"] for row in read_wandb(directory).history] for directory in (first, second)]
    assert steps == [[1, 2, 3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("mode", ["disabled", "auto"])
def test_disabled_is_disabled_there_too(
    mode: str, nobody_logged_in: Path, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with WandbProcess() as process:
        track(make_tracker(TrackingConfig(mode=mode), None, print, process.address), record, tmp_path, range(1, 3))
    assert not record.wandb
    assert [*nobody_logged_in.rglob("*"), *tmp_path.rglob("wandb")] == []


@pytest.mark.parametrize("config", [TrackingConfig(mode="online"), TrackingConfig(mode="offline", project="a/b")])
def test_what_wandb_would_refuse_is_refused_in_the_same_words(config: TrackingConfig, address: WandbAddress) -> None:
    with pytest.raises(ValueError, match=r"tracking"):
        TrackingCheck(config, address).require()


def test_a_killed_training_leaves_a_finished_run_with_its_rows(
    record: RunRecord, tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    record.write(tmp_path)
    script = f"""
import os, signal, sys, time
from pathlib import Path
from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb.process import WandbAddress
directory = Path({str(tmp_path)!r})
record = RunRecord.read(directory)
address = WandbAddress(sys.argv[1], bytes.fromhex(sys.argv[2]), os.getppid())
tracker = make_tracker(TrackingConfig(mode="offline"), None, lambda line: None, address)
tracker.start(record, directory, resume_after=None)
for step in range(1, 6):
    tracker.log({{"train/loss": 1 / step}}, step)
while not list(directory.glob("wandb/offline-run-*/*.wandb")):
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with WandbProcess() as process:
        address = process.address
        done = subprocess.run([sys.executable, "-c", script, address.path, address.key.hex()], check=False)
        assert done.returncode == -signal.SIGKILL
    (directory,) = (tmp_path / "wandb").glob("offline-run-*")
    deadline = time.monotonic() + 30
    while (tracked := read_wandb(directory)).exit_code is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert tracked.history == read_history(tmp_path)
    assert (tracked.exit_code, tracked.summary["status"]) == (1, "interrupted")


def test_a_process_that_is_killed_each_time_costs_one_line(
    process: WandbProcess, record: RunRecord, tmp_path: Path
) -> None:
    said: list[str] = []
    over = Event()

    def kill() -> None:
        while not over.wait(0.01):
            for served in wandb_processes():
                with suppress(psutil.Error):
                    for one in (*served.children(recursive=True), served):
                        one.kill()

    tracker = make_tracker(OFFLINE, None, said.append, process.address)
    killer = Thread(target=kill)
    killer.start()
    try:
        tracker.start(record, tmp_path, resume_after=None)
        for step in range(1, 40):
            tracker.log({"train/loss": 1 / step}, step)
            time.sleep(0.05)
        tracker.finish(record)
    finally:
        over.set()
        killer.join()
    assert said == [f"W&B: lost ({record.wandb.error}); {SYNC_LATER}"]
    assert len(read_history(tmp_path)) == 39


def test_a_long_temporary_folder_has_room_for_no_socket(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_wandb: Callable[[Path], WandbFile]
) -> None:
    """The path of a socket may have 107 characters."""
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    with WandbProcess() as process:
        track(make_tracker(OFFLINE, None, lambda line: None, process.address), record, tmp_path, range(1, 4))
    assert read_wandb(tmp_path / record.wandb.directory).history == read_history(tmp_path)


def test_signals_and_strangers_do_not_end_it(process: WandbProcess, record: RunRecord, tmp_path: Path) -> None:
    with socket.socket(FAMILY) as stranger:
        stranger.connect(process.address.path)
        with Connection(stranger.detach()) as connection:
            connection.send_bytes(b"guessed")
            with pytest.raises((EOFError, OSError)):
                connection.recv()
    served = wandb_process()
    os.kill(served.pid, signal.SIGINT)
    os.kill(served.pid, signal.SIGTERM)
    track(make_tracker(OFFLINE, None, lambda line: None, process.address), record, tmp_path, range(1, 3))
    assert record.wandb.error is None


def test_it_ends_with_the_process_that_made_it(tmp_path: Path) -> None:
    script = "\n".join(
        [
            "import os, psutil, signal",
            "from ampsweep.tracking.wandb.process import WandbProcess",
            "process = WandbProcess().__enter__()",
            "process.address",
            "print(psutil.Process().children()[0].pid, flush=True)",
            "os.kill(os.getpid(), signal.SIGKILL)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(10)


def test_it_removes_no_folder_but_its_own(tmp_path: Path) -> None:
    """Where its own has no room, Python's folder for temporary files is that of everybody."""
    own, of_all = Path(tempfile.mkdtemp(dir=socket_folder())), tmp_path / "tmp"
    of_all.mkdir()
    (of_all / "work").touch()
    script = "import tempfile; tempfile.tempdir = {!r}; from ampsweep.tracking.wandb.service import main; main({!r})"
    command = [sys.executable, "-c", script.format(str(of_all), str(own))]
    ended = subprocess.run(command, input=bytes(KEY_BYTES), stdout=subprocess.PIPE, timeout=60, check=True)
    assert ended.stdout.decode().startswith(str(own))
    assert not own.exists()
    assert (of_all / "work").exists()
