"""A test that hangs is a failure, and the output of the suite shows where it hung."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HANGING = """
import ctypes, threading
import pytest

@pytest.fixture
def never_torn_down():
    yield
    threading.Event().wait(60)

def test_waits_for_another_thread():
    thread = threading.Thread(target=threading.Event().wait, name="the other thread", daemon=True)
    thread.start()
    thread.join()

def test_waits_twice(never_torn_down):
    threading.Event().wait()

def test_never_leaves_c():
    lock, c = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    c.pthread_mutex_lock(lock)
    c.pthread_mutex_lock(lock)

def test_is_fine():
    pass
"""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="without POSIX's signals a test that hangs ends its process")
def test_a_hang_fails_and_shows_all_stacks(repository: Path, tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text((repository / "pyproject.toml").read_text())
    (tmp_path / "test_hanging.py").write_text(_HANGING)
    limits = ("-o", "timeout=0.5", "-o", "faulthandler_timeout=2")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "time_limit", *limits, "test_hanging.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository / "tests")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 1
    assert "FAILED test_hanging.py::test_waits_for_another_thread - Failed: Timeout" in shown
    assert "Stack of the other thread" in shown
    for name in ("test_waits_twice", "test_never_leaves_c"):
        assert f"crashed while running 'test_hanging.py::{name}'" in shown
    assert "in never_torn_down" in shown
    assert "in test_never_leaves_c" in shown
    assert "1 passed" in shown
