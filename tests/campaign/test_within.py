"""A command within a time: what it started ends with it, and nothing else does."""

import os
import subprocess
import sys
import time

import psutil
from campaign.within import GRACE_S, end_leftover, run_within
from tiny_campaign import is_alive

WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def within(tmp_path, code, seconds):
    command = [sys.executable, "-c", code]
    return run_within(command, seconds, directory=tmp_path, cwd=tmp_path, environment=os.environ)


def test_what_ends_in_time_tells_its_code_and_what_it_said(tmp_path):
    ended = within(tmp_path, "import sys; print('said'); print('told', file=sys.stderr); sys.exit(3)", 30.0)
    assert (ended.code, ended.in_time, ended.out, ended.err) == (3, True, "said\n", "told\n")
    assert not (tmp_path / "running").exists()


def test_what_takes_longer_is_ended_with_all_that_it_started(tmp_path):
    began_s = time.monotonic()
    ended = within(tmp_path, WITH_A_CHILD, 2.5)
    assert not ended.in_time
    assert time.monotonic() - began_s < 2.5 + GRACE_S, "asked to end, it does so at once"
    assert not is_alive(int(ended.out))


def test_only_the_very_process_that_was_noted_is_ended_later(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    born = psutil.Process(process.pid).create_time()
    (tmp_path / "running").write_text(f"{process.pid} {born - 100:.2f}")
    end_leftover(tmp_path)
    assert process.poll() is None, "another process has its number now"
    (tmp_path / "running").write_text(f"{process.pid} {born:.2f}")
    end_leftover(tmp_path)
    assert process.wait(10.0) < 0
    end_leftover(tmp_path)
