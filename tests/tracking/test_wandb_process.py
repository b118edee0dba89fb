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

import psutil
import pytest
from served import endless_training, train, wait_until, wandb_cores, wandb_process
from wandb_file import read_wandb_file

from ampsweep.records import read_history
from ampsweep.socket_folder import socket_folder
from ampsweep.tracking.wandb.follower import SYNC_LATER
from ampsweep.tracking.wandb.process import FAMILY, KEY_BYTES, kill_family


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


def test_a_killed_training_leaves_a_finished_run_with_its_rows(shared, record, tmp_path):
    with endless_training(record, tmp_path, "offline", shared) as training:
        wait_until(lambda: [*tmp_path.glob("wandb/offline-run-*/*.wandb")])
        training.kill()
    (directory,) = (tmp_path / "wandb").glob("offline-run-*")
    wait_until(lambda: read_wandb_file(directory).exit_code is not None)
    found = read_wandb_file(directory)
    assert found.history == read_history(tmp_path) != []
    assert (found.exit_code, found.summary["status"]) == (1, "interrupted")


@pytest.mark.parametrize("step", [0, 10])
def test_a_killed_wandb_process_costs_a_line_and_no_row(step, record, tmp_path):
    with wandb_process(tmp_path) as address:

        def kill():
            if step > 0:
                wait_until(wandb_cores)  # the run has begun there
            kill_family(address.pid)

        tracked = train(record, tmp_path, address, events={step: kill})
    assert tracked.said[-1] == f"W&B: lost ({record.wandb.error}); {SYNC_LATER}"
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
    script = """
import os, signal
from ampsweep.tracking.wandb.process import WandbProcess
print(WandbProcess().__enter__().address.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)"""
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
