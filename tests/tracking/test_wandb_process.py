"""A W&B process and a training: either may die, and neither harms the other."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from served import train, wait_until, wandb_process
from wandb_file import read_wandb_file

from ampsweep.record import read_history
from ampsweep.socket_folder import socket_folder
from ampsweep.tracking.wandb.follower import SYNC_LATER
from ampsweep.tracking.wandb.process import FAMILY, KEY_BYTES


def test_a_training_can_start_its_own_wandb_process(record, tmp_path, monkeypatch):
    """In a temporary folder whose path is too long for a socket, and below a wandb-core of a parent's."""
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setenv("WANDB_SERVICE", f"3-{os.getpid()}-unix-/nowhere")
    monkeypatch.setattr("tempfile.tempdir", None)
    train(record, tmp_path, None, range(1, 4))
    assert read_wandb_file(tmp_path / record.wandb.directory).history == read_history(tmp_path)
    assert record.wandb.error is None


KILLED = """
import os, signal, sys, time
from pathlib import Path
from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb.process import WandbAddress
path, key, directory = sys.argv[1], bytes.fromhex(sys.argv[2]), Path(sys.argv[3])
tracker = make_tracker(TrackingConfig(mode="offline"), None, print, WandbAddress(path, key, os.getppid()))
tracker.start(RunRecord.read(directory), directory, resume_after=None)
for step in range(1, 6):
    tracker.log({"train/loss": 1 / step}, step)
while not list(directory.glob("wandb/offline-run-*/*.wandb")):
    time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_training_leaves_a_finished_run_with_its_rows(shared, record, tmp_path):
    record.write(tmp_path)
    command = [sys.executable, "-c", KILLED, shared.path, shared.key.hex(), str(tmp_path)]
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    (directory,) = (tmp_path / "wandb").glob("offline-run-*")
    wait_until(lambda: read_wandb_file(directory).exit_code is not None)
    found = read_wandb_file(directory)
    assert found.history == read_history(tmp_path)
    assert len(found.history) == 5
    assert (found.exit_code, found.summary["status"]) == (1, "interrupted")


def test_a_killed_wandb_process_costs_a_line_and_no_row(record, tmp_path):
    over = Event()
    with wandb_process(tmp_path) as address:

        def kill():
            while not over.wait(0.01):
                with suppress(psutil.Error):
                    served = psutil.Process(address.pid)
                    for process in (*served.children(recursive=True), served):
                        process.kill()

        killer = Thread(target=kill)
        killer.start()
        try:
            tracked = train(record, tmp_path, address)
        finally:
            over.set()
            killer.join()
    assert tracked.said == [f"W&B: lost ({record.wandb.error}); {SYNC_LATER}"]
    assert len(read_history(tmp_path)) == 20


def test_signals_and_strangers_do_not_end_a_wandb_process(shared, record, tmp_path):
    with socket.socket(FAMILY) as stranger:
        stranger.connect(shared.path)
        with Connection(stranger.detach()) as connection:
            connection.send_bytes(b"guessed")
            with pytest.raises((EOFError, OSError)):
                connection.recv()
    os.kill(shared.pid, signal.SIGINT)
    os.kill(shared.pid, signal.SIGTERM)
    train(record, tmp_path, shared, range(1, 3))
    assert record.wandb.error is None


def test_a_wandb_process_ends_with_its_creator():
    script = "\n".join(
        [
            "import os, signal",
            "from ampsweep.tracking.wandb.process import WandbProcess",
            "print(WandbProcess().__enter__().address.pid, flush=True)",
            "os.kill(os.getpid(), signal.SIGKILL)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(10)


def test_a_wandb_process_removes_only_its_own_folder(tmp_path):
    """Where its own has no room, Python's folder for temporary files is everybody's."""
    own, of_all = Path(tempfile.mkdtemp(dir=socket_folder())), tmp_path / "tmp"
    of_all.mkdir()
    (of_all / "work").touch()
    script = "import tempfile; tempfile.tempdir = {!r}; from ampsweep.tracking.wandb.service import main; main({!r})"
    command = [sys.executable, "-c", script.format(str(of_all), str(own))]
    ended = subprocess.run(command, input=bytes(KEY_BYTES), stdout=subprocess.PIPE, timeout=60, check=True)
    assert ended.stdout.decode().startswith(str(own))
    assert not own.exists()
    assert (of_all / "work").exists()
