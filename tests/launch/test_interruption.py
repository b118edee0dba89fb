import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import isolated_targets
import psutil
import pytest

import ampsweep
from ampsweep.stop_signals import STOP_SIGNALS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals between processes are a POSIX matter")
forkserver_only = pytest.mark.skipif(sys.platform != "linux", reason="children are spawned here, not forked")


class Parent:
    """A process of its own session, as one started from a shell, that runs a target in isolation."""

    def __init__(self, target, path, grace_s=60.0, preload="json"):
        places = [str(Path(ampsweep.__path__[0]).parent), str(path.parent), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, isolated_targets.__file__, target, path, str(grace_s), preload],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.hear() == "ready"

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def expect_end(self, **facts):
        """The end of the child has these facts; the parent goes on, ends quietly, and complains of nothing."""
        end = self.hear()
        assert {name: end[name] for name in facts} == facts
        assert self.hear() == "next"
        assert self.process.communicate(timeout=10)[1] == "", "the resource tracker lives on, too"

    def expect_stopped_by(self, name, *, interrupted=True):
        stopped_by = name if interrupted else ""
        self.expect_end(exitcode=0, result=name, error=None, sentence=None, stopped_by=stopped_by, oom_killed=False)


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


@pytest.fixture
def slow_module(tmp_path):
    """The name of a module whose import takes a given time, and a function that waits until it has begun."""

    def slow_module(seconds):
        file, begun = tmp_path / "slow_import.py", tmp_path / "begun"
        file.write_text(f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep({seconds})")

        def wait():
            while not begun.exists():
                time.sleep(0.01)
            time.sleep(0.1)

        return "slow_import", wait

    return slow_module


def ends(pid, within_s):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("to", "number"), [("group", signal.SIGINT), ("parent", signal.SIGTERM), ("child", signal.SIGTERM)]
)
def test_a_signal_to_parent_or_group_is_one_request(to, number, start):
    parent = start("train_until_stopped")
    child = parent.hear()
    if to == "group":  # as Ctrl-C
        os.killpg(parent.process.pid, number)
    else:
        os.kill(child if to == "child" else parent.process.pid, number)
    parent.expect_stopped_by(number.name, interrupted=to != "child")


@pytest.mark.parametrize("number", STOP_SIGNALS[1:])
def test_a_signal_to_every_process_spares_the_fork_server(start, number):
    """As Slurm sends its warning, and then SIGTERM, to all processes of a job step."""
    parent = start("train_until_stopped")
    parent.hear()
    for process in (parent.process, *psutil.Process(parent.process.pid).children(recursive=True)):
        process.send_signal(number)
    parent.expect_stopped_by(number.name)


@forkserver_only
def test_ctrl_c_during_the_first_imports_is_kept_for_the_child(start, slow_module):
    module, wait = slow_module(0.5)
    parent = start("train_until_stopped", preload=module)
    wait()
    os.killpg(parent.process.pid, signal.SIGINT)
    parent.hear()
    parent.expect_stopped_by("SIGINT")


@forkserver_only
def test_a_fork_server_that_still_imports_ends_with_its_parent(start, slow_module):
    module, wait = slow_module(600)
    parent = start("train_until_stopped", preload=module)
    wait()
    children = psutil.Process(parent.process.pid).children()
    (server,) = [child for child in children if "forkserver" in " ".join(child.cmdline())]
    parent.process.kill()
    assert ends(server.pid, within_s=30)


@pytest.mark.parametrize(
    ("grace_s", "error"),
    [(0.4, "killed: it had not ended 0.4 s after it was to"), (60.0, "killed at the second signal")],
)
def test_a_run_is_killed_after_its_grace_or_a_second_signal(grace_s, error, start):
    parent = start("never_stop", grace_s=grace_s)
    parent.hear()
    parent.process.send_signal(signal.SIGTERM)
    if grace_s > 1:
        time.sleep(0.7)
        parent.process.send_signal(signal.SIGTERM)
    parent.expect_end(exitcode=-signal.SIGKILL, stopped_by="SIGTERM", error=error)


@pytest.mark.parametrize(
    ("target", "grace_s", "left"),
    [
        ("train_until_stopped", 60.0, "the parent process died"),
        ("linger_once_stopped", 60.0, "the parent process died"),  # its thread would keep it for a minute
        ("never_stop", 0.4, None),
    ],
)
def test_the_child_of_a_killed_parent_ends_with_its_call_or_its_grace(target, grace_s, left, start, tmp_path):
    parent = start(target, grace_s=grace_s)
    child = parent.hear()
    parent.process.kill()
    assert ends(child, within_s=30)
    assert left is None or (tmp_path / "end").read_text() == left


def test_a_process_that_a_child_leaves_ends_with_it(start):
    assert ends(start("leave_a_process").hear(), within_s=30)


@pytest.mark.nightly
@forkserver_only
def test_the_child_of_a_killed_fork_server_is_ended(start):
    parent = start("orphan")
    child = parent.hear()
    end = parent.hear()
    assert end["error"] == "ended with exit code 255 before it returned (or its fork server was killed)"
    assert ends(child, within_s=2)
    assert parent.hear() == "next"
