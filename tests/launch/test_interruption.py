import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import ampsweep
from ampsweep.stop_signals import STOP_SIGNALS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals between processes are a POSIX matter")


class Parent:
    """A process of its own session, as one started from a shell, that runs a target in isolation."""

    def __init__(self, target, path, grace_s=60.0, preload="json"):
        script = Path(__file__).with_name("isolated_parent.py")
        self.process = subprocess.Popen(
            [sys.executable, script, target, path, str(grace_s), preload],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(Path(ampsweep.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
                ),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.hear() == "ready"

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def signal(self, number):
        self.process.send_signal(number)

    def signal_all(self, number):
        os.killpg(self.process.pid, number)


@pytest.fixture
def start(tmp_path):
    parents = []

    def start(target, **options):
        parents.append(Parent(target, tmp_path / "end", **options))
        return parents[-1]

    yield start
    for parent in parents:
        parent.process.kill()
        parent.process.communicate()


def wait_for_end(pid, within_s):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def stopped_by(name, *, interrupted):
    """The end of a child that a signal of this name made return."""
    told = {"error": None, "sentence": None}
    return {"exitcode": 0, "result": name, **told, "stopped_by": name if interrupted else "", "oom_killed": False}


def test_ctrl_c_reaches_parent_and_child_and_is_one_request(start):
    parent = start("train_until_stopped")
    parent.hear()
    parent.signal_all(signal.SIGINT)
    assert parent.hear() == stopped_by("SIGINT", interrupted=True)
    assert parent.hear() == "next"
    assert parent.process.communicate(timeout=10)[1] == ""


def test_a_signal_to_the_parent_alone_is_passed_on(start):
    parent = start("train_until_stopped")
    parent.hear()
    parent.signal(signal.SIGTERM)
    assert parent.hear() == stopped_by("SIGTERM", interrupted=True)


def test_a_signal_to_the_child_alone_spares_the_parent(start):
    parent = start("train_until_stopped")
    os.kill(parent.hear(), signal.SIGTERM)
    assert parent.hear() == stopped_by("SIGTERM", interrupted=False)


@pytest.mark.parametrize("number", STOP_SIGNALS[1:])
def test_a_signal_to_every_process_spares_the_fork_server(start, number):
    """As Slurm sends its warning, and then SIGTERM, to all processes of a job step."""
    parent = start("train_until_stopped")
    parent.hear()
    processes = [parent.process, *psutil.Process(parent.process.pid).children(recursive=True)]
    for process in processes:
        process.send_signal(number)
    assert parent.hear() == stopped_by(number.name, interrupted=True)
    assert parent.hear() == "next"
    assert parent.process.communicate(timeout=10)[1] == "", "the resource tracker lives on, too"


def test_ctrl_c_during_the_first_imports_is_kept_for_the_child(start):
    parent = start("train_until_stopped", preload="torch")
    time.sleep(0.2)  # it waits for its fork server, which imports torch for a second or more
    parent.signal_all(signal.SIGINT)
    parent.hear()
    assert parent.hear() == stopped_by("SIGINT", interrupted=True)
    assert parent.hear() == "next"
    assert parent.process.communicate(timeout=10)[1] == ""


def test_a_run_that_does_not_stop_in_its_grace_is_killed(start):
    parent = start("never_stop", grace_s=0.4)
    parent.hear()
    parent.signal(signal.SIGTERM)
    end = parent.hear()
    assert (end["exitcode"], bool(end["stopped_by"])) == (-signal.SIGKILL, True)
    assert end["error"] == "killed: it had not ended 0.4 s after it was to"


def test_a_second_signal_kills_at_once(start):
    parent = start("never_stop")
    parent.hear()
    parent.signal(signal.SIGTERM)
    time.sleep(0.7)
    parent.signal(signal.SIGTERM)
    end = parent.hear()
    assert (end["exitcode"], bool(end["stopped_by"])) == (-signal.SIGKILL, True)
    assert end["error"] == "killed at the second signal"


def test_the_child_of_a_killed_parent_stops_as_asked(start, tmp_path):
    parent = start("train_until_stopped")
    child = parent.hear()
    parent.signal(signal.SIGKILL)
    assert wait_for_end(child, within_s=5)
    assert (tmp_path / "end").read_text() == "the parent process died"


def test_the_child_of_a_killed_parent_ends_with_its_call(start):
    parent = start("linger_once_stopped")
    child = parent.hear()
    parent.signal(signal.SIGKILL)
    assert wait_for_end(child, within_s=30), "its own threads would keep it for a minute"


def test_a_process_that_a_child_leaves_ends_with_it(start):
    parent = start("leave_a_process")
    assert wait_for_end(parent.hear(), within_s=30)


def test_the_child_of_a_killed_parent_ends_after_its_grace(start):
    parent = start("never_stop", grace_s=0.4)
    child = parent.hear()
    parent.signal(signal.SIGKILL)
    assert wait_for_end(child, within_s=5)


@pytest.mark.skipif(sys.platform != "linux", reason="children are spawned here, not forked")
def test_a_fork_server_that_still_imports_ends_with_its_parent(start, tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text(
        "import pathlib, time\npathlib.Path(__file__ + '.begun').touch()\ntime.sleep(600)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parent = start("train_until_stopped", preload="endless")
    while not (tmp_path / "endless.py.begun").exists():
        time.sleep(0.05)
    (server,) = [
        one for one in psutil.Process(parent.process.pid).children() if "forkserver" in " ".join(one.cmdline())
    ]
    parent.signal(signal.SIGKILL)
    assert wait_for_end(server.pid, within_s=30)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are spawned here, not forked")
def test_the_child_of_a_killed_fork_server_is_ended(start):
    parent = start("orphan")
    child = parent.hear()
    end = parent.hear()
    assert end["error"] == "ended with exit code 255 before it returned (or its fork server was killed)"
    assert wait_for_end(child, within_s=2)
    assert parent.hear() == "next"
